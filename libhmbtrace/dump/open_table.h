/* SPDX-License-Identifier: Apache-2.0 */
/* Begins that wait for their end: linear probing, at most 3/4 full. */
#ifndef HMB_OPEN_TABLE_H
#define HMB_OPEN_TABLE_H

#include <string.h>

#include "core.h"

/* Two rounds, with a seed inside: who chooses keys cannot choose slots. */
static inline uint64_t hmb_open_hash(const struct hmb_open_table *table, uint64_t key,
				     uint32_t pair)
{
	uint64_t h = (key ^ table->seed) + pair * 0x9e3779b97f4a7c15u;

	h = (h ^ (h >> 32)) * (table->seed | 1);
	h = (h ^ (h >> 29)) * 0xff51afd7ed558ccdu;
	return h ^ (h >> 32);
}

/* The slot of (key, pair), or the free slot where it would go. */
static inline struct hmb_open *hmb_open_find(const struct hmb_open_table *table, uint64_t key,
					     uint32_t pair)
{
	uint64_t mask = table->size - 1;
	uint64_t i = hmb_open_hash(table, key, pair) & mask;

	while (table->slots[i].pair && (table->slots[i].pair != pair || table->slots[i].key != key))
		i = (i + 1) & mask;
	return &table->slots[i];
}

static inline int hmb_open_full(const struct hmb_open_table *table)
{
	return table->used >= table->size / 4 * 3;
}

/* Free a slot; entries behind it move up so that no search ends too early. */
static inline void hmb_open_remove(struct hmb_open_table *table, struct hmb_open *slot)
{
	uint64_t mask = table->size - 1;
	uint64_t hole = (uint64_t)(slot - table->slots);

	for (uint64_t i = (hole + 1) & mask; table->slots[i].pair; i = (i + 1) & mask) {
		const struct hmb_open *entry = &table->slots[i];
		uint64_t home = hmb_open_hash(table, entry->key, entry->pair) & mask;

		if (((i - home) & mask) >= ((i - hole) & mask)) {
			table->slots[hole] = *entry;
			hole = i;
		}
	}
	table->slots[hole].pair = 0;
	table->used--;
}

static inline uint64_t hmb_payload_bits(const uint8_t *payload, struct hmb_payload_int field)
{
	uint64_t value = 0;

	switch (field.size) {
	case 1:
		return payload[field.offset];
	case 2:
		memcpy(&value, payload + field.offset, 2);
		return value;
	case 4:
		memcpy(&value, payload + field.offset, 4);
		return value;
	default:
		memcpy(&value, payload + field.offset, 8);
		return value;
	}
}

static inline int hmb_payload_has(struct hmb_payload_int field, uint32_t payload_len)
{
	return (uint32_t)field.offset + field.size <= payload_len;
}

/* What pairs this record: a payload field, sign-extended, or the cpu. */
static inline uint64_t hmb_pair_key(const struct hmb_rule *rule, const uint8_t *payload,
				    uint8_t cpu)
{
	uint64_t bits;

	if (!rule->key.size)
		return cpu;
	bits = hmb_payload_bits(payload, rule->key);
	if (rule->key.is_signed) {
		unsigned int unused = 64u - 8u * rule->key.size;

		bits = (uint64_t)((int64_t)(bits << unused) >> unused);
	}
	return bits;
}

/* What a begin or an end met in the table. */
enum hmb_meeting {
	HMB_MET_NOTHING,
	HMB_MET_BEGIN, /* a begin: one that lost its end. An end: its begin */
	HMB_MET_OTHER_PIECE, /* an end: a begin from before a gap, an epoch or a clock step */
};

/*
 * A begin waits from here on, under its key.  One that waited there has lost its end: *lost.
 * The caller made sure that the table is not full.
 */
static inline enum hmb_meeting hmb_pair_begin(struct hmb_open_table *table,
					      const struct hmb_open *begin, struct hmb_open *lost)
{
	struct hmb_open *slot = hmb_open_find(table, begin->key, begin->pair);
	enum hmb_meeting met = slot->pair ? HMB_MET_BEGIN : HMB_MET_NOTHING;

	*lost = *slot;
	if (!slot->pair)
		table->used++;
	*slot = *begin;
	slot->piece = table->piece;
	return met;
}

/* An end takes its begin out of the table.  One before its begin (in one piece) is not its end. */
static inline enum hmb_meeting hmb_pair_end(struct hmb_open_table *table, uint64_t key,
					    uint32_t pair, uint64_t ts_ns, struct hmb_open *begin)
{
	struct hmb_open *slot = hmb_open_find(table, key, pair);
	enum hmb_meeting met = slot->piece == table->piece ? HMB_MET_BEGIN : HMB_MET_OTHER_PIECE;

	if (!slot->pair || (met == HMB_MET_BEGIN && ts_ns < slot->ts_ns))
		return HMB_MET_NOTHING;
	*begin = *slot;
	hmb_open_remove(table, slot);
	return met;
}

/* A carried duration in ns; 0: it is none (see hmb_durations_ns). */
static inline int hmb_duration_ns(uint64_t bits, uint32_t size, uint32_t is_signed, uint64_t mul,
				  uint64_t div, uint64_t *ns)
{
	uint64_t whole, rest;

	*ns = 0;
	if (bits == UINT64_MAX || (is_signed && bits >> (8 * size - 1)))
		return 0;
	rest = bits % div * mul / div;
	if (__builtin_mul_overflow(bits / div, mul, &whole) ||
	    __builtin_add_overflow(whole, rest, &whole))
		return 0;
	*ns = whole;
	return 1;
}

#endif
