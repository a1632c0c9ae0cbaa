// SPDX-License-Identifier: Apache-2.0
/* Pairing of begin and end records, batch by batch. Nothing is guessed: see hmb_pair_rows(). */
#include "open_table.h"

int hmb_open_rehash(const struct hmb_open_table *from, struct hmb_open_table *to, uint64_t min_ref)
{
	for (uint64_t i = 0; i < from->size; i++) {
		const struct hmb_open *entry = &from->slots[i];

		if (!entry->pair || entry->ref < min_ref)
			continue;
		if (hmb_open_full(to))
			return -ENOSPC;
		*hmb_open_find(to, entry->key, entry->pair) = *entry;
		to->used++;
	}
	return 0;
}

static void single_row(struct hmb_pair_rows *batch, uint64_t i, uint64_t key,
		       const struct hmb_rule *rule)
{
	batch->singles[batch->singles_len++] = (struct hmb_single){
		.row = batch->row_base + i,
		.ts_ns = batch->ts_ns[i],
		.key = key,
		.opcode = batch->opcode[i],
		.cpu = batch->cpu[i],
		.is_end = rule->kind == HMB_RULE_END,
		.pair = rule->pair,
	};
}

static void single_open(struct hmb_pair_rows *batch, const struct hmb_open *open)
{
	batch->singles[batch->singles_len++] = (struct hmb_single){
		.row = open->ref,
		.ts_ns = open->ts_ns,
		.key = open->key,
		.opcode = open->opcode,
		.cpu = open->cpu,
		.pair = open->pair - 1,
	};
}

static void begin_row(struct hmb_open_table *table, struct hmb_pair_rows *batch, uint64_t i,
		      uint64_t key, const struct hmb_rule *rule)
{
	struct hmb_open lost, begin = {
		.key = key,
		.ts_ns = batch->ts_ns[i],
		.ref = batch->row_base + i,
		.pair = rule->pair + 1u,
		.opcode = batch->opcode[i],
		.cpu = batch->cpu[i],
	};

	if (hmb_pair_begin(table, &begin, &lost) == HMB_MET_BEGIN)
		single_open(batch, &lost);
}

static void end_row(struct hmb_open_table *table, struct hmb_pair_rows *batch, uint64_t i,
		    uint64_t key, const struct hmb_rule *rule)
{
	struct hmb_open begin;
	enum hmb_meeting met = hmb_pair_end(table, key, rule->pair + 1u, batch->ts_ns[i], &begin);

	if (met == HMB_MET_NOTHING) {
		single_row(batch, i, key, rule);
		return;
	}
	batch->matches[batch->matches_len++] = (struct hmb_match){
		.begin_row = begin.ref,
		.end_row = batch->row_base + i,
		.begin_ts_ns = begin.ts_ns,
		.end_ts_ns = batch->ts_ns[i],
		.key = key,
		.begin_opcode = begin.opcode,
		.end_opcode = batch->opcode[i],
		.begin_cpu = begin.cpu,
		.end_cpu = batch->cpu[i],
		.pair = rule->pair,
		.uncertain = met == HMB_MET_OTHER_PIECE,
	};
}

static void pair_row(struct hmb_open_table *table, struct hmb_pair_rows *batch, uint64_t i,
		     const struct hmb_rule *rule)
{
	uint64_t key;

	if (!hmb_payload_has(rule->key, batch->payload_len[i])) {
		single_row(batch, i, 0, rule);
		return;
	}
	key = hmb_pair_key(rule, batch->payloads + batch->payload_at[i], batch->cpu[i]);
	if (rule->kind == HMB_RULE_BEGIN)
		begin_row(table, batch, i, key, rule);
	else
		end_row(table, batch, i, key, rule);
}

int hmb_pair_rows(const struct hmb_rules *rules, struct hmb_open_table *open,
		  struct hmb_pair_rows *batch)
{
	for (; batch->done < batch->rows; batch->done++) {
		uint64_t i = batch->done;
		const struct hmb_rule *rule = &rules->rules[rules->index[batch->opcode[i]]];

		for (; batch->cuts_done < batch->cuts_len && batch->cuts[batch->cuts_done] <= i;
		     batch->cuts_done++)
			open->piece++;
		if (rule->kind < HMB_RULE_BEGIN || (batch->flags[i] & HMB_REC_FLAG_WRAP_MARKER))
			continue;
		if (hmb_open_full(open))
			return HMB_STEP_TABLE;
		pair_row(open, batch, i, rule);
	}
	return 0;
}

uint64_t hmb_durations_ns(const uint64_t *values, uint64_t n, uint32_t size, uint32_t is_signed,
			  uint64_t mul, uint64_t div, uint64_t *out, uint8_t *valid)
{
	uint64_t invalid = 0;

	for (uint64_t i = 0; i < n; i++) {
		valid[i] = (uint8_t)hmb_duration_ns(values[i], size, is_signed, mul, div, &out[i]);
		invalid += !valid[i];
	}
	return invalid;
}
