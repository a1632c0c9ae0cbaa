// SPDX-License-Identifier: Apache-2.0
/* Dump records to .pccx events, flatbuf and bincode (SPEC P6). */
#include "open_table.h"

#define EVENT_SIZE 24u /* flatbuf; bincode's fixed fields take the first 20 */
#define FIXED_SIZE 20u
#define DURATION_AT 12u
#define NS_PER_US 1000u

/* value * mul / div, exact: whole quotients and the rest apart, so 64 bits suffice. */
static inline uint64_t scale(uint64_t value, uint64_t mul, uint64_t div, uint64_t *saturated)
{
	uint64_t whole, rest = value % div * mul / div;

	if (__builtin_mul_overflow(value / div, mul, &whole) ||
	    __builtin_add_overflow(whole, rest, &whole)) {
		++*saturated;
		return UINT64_MAX;
	}
	return whole;
}

static inline uint64_t cycles_of(struct hmb_event_maker *maker, uint64_t ts_ns)
{
	return scale(ts_ns, maker->clock_mhz, NS_PER_US, &maker->saturated);
}

static uint64_t own_duration(struct hmb_event_maker *maker, const struct hmb_rule *rule,
			     const uint8_t *payload, uint32_t payload_len)
{
	uint64_t value, ns;

	if (!hmb_payload_has(rule->duration, payload_len)) {
		maker->short_payloads++;
		return 0;
	}
	value = hmb_payload_bits(payload, rule->duration);
	if (!hmb_duration_ns(value, rule->duration.size, rule->duration.is_signed, rule->ns_mul,
			     rule->ns_div, &ns)) {
		maker->invalid++;
		return 0;
	}
	return scale(value, rule->cycles_mul, rule->cycles_div, &maker->saturated);
}

static void see_end(struct hmb_event_maker *maker, uint64_t start, uint64_t duration)
{
	uint64_t end;

	if (__builtin_add_overflow(start, duration, &end))
		end = UINT64_MAX;
	maker->cycles = HMB_MAX(maker->cycles, end);
}

static inline uint64_t event_size(const struct hmb_event_maker *maker, const struct hmb_rule *rule)
{
	return maker->encoding == HMB_ENCODING_FLATBUF ? EVENT_SIZE
						       : FIXED_SIZE + rule->text_length;
}

/* The caller made sure that out has room. */
static inline void put_event(struct hmb_event_maker *maker, struct hmb_step *step,
			     const struct hmb_rule *rule, uint32_t cpu, uint64_t start,
			     uint64_t duration)
{
	uint8_t *to = step->out + step->out_len;
	uint32_t type = rule->event_type;
	uint64_t size = event_size(maker, rule);

	memcpy(to, &cpu, 4);
	memcpy(to + 4, &start, 8);
	memcpy(to + DURATION_AT, &duration, 8);
	if (maker->encoding == HMB_ENCODING_FLATBUF)
		memcpy(to + FIXED_SIZE, &type, 4);
	else
		memcpy(to + FIXED_SIZE, maker->rules.texts + rule->text_offset, rule->text_length);
	maker->cores = HMB_MAX(maker->cores, cpu + 1);
	maker->events++;
	step->out_len += size;
	maker->position += size;
	see_end(maker, start, duration);
}

/* The begin's event has its final place already; its duration goes there. */
static void close_pair(struct hmb_event_maker *maker, struct hmb_step *step,
		       const struct hmb_open *begin, uint64_t end)
{
	uint64_t start = cycles_of(maker, begin->ts_ns), duration = end - start;
	uint64_t in_buffer = maker->position - step->out_len, at = begin->ref + DURATION_AT;

	if (begin->ref >= in_buffer)
		memcpy(step->out + (at - in_buffer), &duration, 8);
	else
		step->patches[step->patches_len++] = (struct hmb_patch){ at, duration };
	maker->pairs++;
	see_end(maker, start, duration);
}

static void open_pair(struct hmb_event_maker *maker, const struct hmb_rule *rule, uint64_t key,
		      uint64_t ts_ns)
{
	struct hmb_open lost, begin = {
		.key = key,
		.ts_ns = ts_ns,
		.ref = maker->position,
		.pair = rule->pair + 1u,
	};

	if (hmb_pair_begin(&maker->open, &begin, &lost) == HMB_MET_BEGIN)
		maker->unmatched_begins++;
}

/* Whether the record ended a pair, and so needs no event of its own. */
static int ends_pair(struct hmb_event_maker *maker, struct hmb_step *step,
		     const struct hmb_rule *rule, uint64_t key, uint64_t ts_ns)
{
	struct hmb_open begin;

	switch (hmb_pair_end(&maker->open, key, rule->pair + 1u, ts_ns, &begin)) {
	case HMB_MET_BEGIN:
		close_pair(maker, step, &begin, cycles_of(maker, ts_ns));
		return 1;
	case HMB_MET_OTHER_PIECE:
		maker->uncertain++;
		return 0;
	default:
		maker->unmatched_ends++;
		return 0;
	}
}

static void paired_record(struct hmb_event_maker *maker, struct hmb_step *step,
			  const struct hmb_rule *rule, const struct hmb_record_hdr *hdr,
			  const uint8_t *payload)
{
	if (!hmb_payload_has(rule->key, hdr->payload_len)) {
		maker->short_payloads++;
		if (rule->kind == HMB_RULE_BEGIN)
			maker->unmatched_begins++;
		else
			maker->unmatched_ends++;
	} else {
		uint64_t key = hmb_pair_key(rule, payload, hdr->cpu);

		if (rule->kind == HMB_RULE_BEGIN)
			open_pair(maker, rule, key, hdr->ts_ns);
		else if (ends_pair(maker, step, rule, key, hdr->ts_ns))
			return;
	}
	put_event(maker, step, rule, hdr->cpu, cycles_of(maker, hdr->ts_ns), 0);
}

static inline void one_record(struct hmb_event_maker *maker, struct hmb_step *step,
			      const struct hmb_rule *rule, const struct hmb_record_hdr *hdr,
			      const uint8_t *payload)
{
	uint64_t duration = 0;

	maker->records++;
	if (rule->kind >= HMB_RULE_BEGIN) {
		paired_record(maker, step, rule, hdr, payload);
		return;
	}
	if (rule->kind == HMB_RULE_COMPLETE)
		duration = own_duration(maker, rule, payload, hdr->payload_len);
	put_event(maker, step, rule, hdr->cpu, cycles_of(maker, hdr->ts_ns), duration);
}

/* Bytes of the record at hdr in a dump; 0: it is none (SPEC R4: bit 0 decides first). */
static inline uint64_t record_size(const struct hmb_record_hdr *hdr)
{
	if (hdr->magic != HMB_RECORD_MAGIC)
		return 0;
	if (hdr->flags & HMB_REC_FLAG_WRAP_MARKER)
		return sizeof(*hdr);
	if (hdr->payload_len > HMB_RECORD_MAX_PAYLOAD)
		return 0;
	return sizeof(*hdr) + hmb_align8(hdr->payload_len);
}

int hmb_make_events(struct hmb_event_maker *maker, struct hmb_step *step)
{
	const struct hmb_rules *rules = &maker->rules;
	struct hmb_record_hdr hdr; /* a raw .pccx may hold its records unaligned */

	while (step->input_len - step->consumed >= sizeof(hdr)) {
		const uint8_t *at = step->input + step->consumed;
		const struct hmb_rule *rule;
		uint64_t size;

		memcpy(&hdr, at, sizeof(hdr));
		rule = &rules->rules[rules->index[hdr.opcode]];
		size = record_size(&hdr);
		if (!size)
			return -EBADMSG;
		if (size > step->input_len - step->consumed)
			break;
		if (step->out_cap - step->out_len < event_size(maker, rule) ||
		    step->patches_len == step->patches_cap)
			return HMB_STEP_OUTPUT;
		if (hmb_open_full(&maker->open))
			return HMB_STEP_TABLE;
		for (; step->cuts_done < step->cuts_len &&
		       step->cuts[step->cuts_done] <= step->consumed;
		     step->cuts_done++)
			maker->open.piece++;
		if (hdr.flags & HMB_REC_FLAG_WRAP_MARKER)
			maker->markers++;
		else
			one_record(maker, step, rule, &hdr, at + sizeof(hdr));
		step->consumed += size;
	}
	return HMB_STEP_INPUT;
}
