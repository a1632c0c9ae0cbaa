/* SPDX-License-Identifier: Apache-2.0 */
/* Begins that wait for their end: linear probing, at most 3/4 full. */
#ifndef HMB_OPEN_TABLE_H
#define HMB_OPEN_TABLE_H

#include <string.h>

#include "core.h"

static inline uint64_t hmb_open_hash(uint64_t key, uint32_t pair)
{
	uint64_t h = (key + pair * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;

	return h ^ (h >> 32);
}

/* The slot of (key, pair), or the free slot where it would go. */
static inline struct hmb_open *hmb_open_find(const struct hmb_open_table *table, uint64_t key,
					     uint32_t pair)
{
	uint64_t mask = table->size - 1;
	uint64_t i = hmb_open_hash(key, pair) & mask;

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
		uint64_t home = hmb_open_hash(entry->key, entry->pair) & mask;

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

#endif
