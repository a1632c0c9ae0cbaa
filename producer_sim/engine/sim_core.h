/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine's files share. */
#ifndef HMB_SIM_CORE_H
#define HMB_SIM_CORE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <linux/hmb_trace.h>

#include "hmb_producer.h"
#include "sim_api.h"

#define SIM_MAX_RECORD 4096u

/* Keep the generator of payloads reproducible: splitmix64, one multiplication chain a word. */
static inline uint64_t sim_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* min..max, both included, from 64 random bits. */
static inline uint64_t sim_scale(uint64_t bits, uint64_t min, uint64_t max)
{
	uint64_t span = max - min + 1;

	return span ? min + (uint64_t)(((unsigned __int128)bits * span) >> 64) : bits;
}

static inline uint64_t sim_between(uint64_t *state, uint64_t min, uint64_t max)
{
	return sim_scale(sim_random(state), min, max);
}

static inline uint64_t sim_monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint32_t sim_record_size(uint32_t payload_len)
{
	return HMB_RECORD_HDR_SIZE + ((payload_len + 7) & ~7u);
}

/* The next record, as it will stand in the dump (seq still open). */
struct sim_record {
	struct hmb_record_hdr hdr;
	uint8_t payload[SIM_MAX_RECORD - HMB_RECORD_HDR_SIZE];
};

_Static_assert(sizeof(struct sim_record) == SIM_MAX_RECORD, "header and payload are contiguous");

/* Things that will happen, by time and then by order of planning. */
struct sim_planned {
	uint64_t time;
	uint64_t order;
	uint64_t key;
	uint64_t since;
	uint32_t what;
	uint32_t extra;
};

struct sim_plan {
	struct sim_planned *heap;
	uint32_t count;
	uint32_t capacity;
	uint64_t next_order;
};

/* 0, or -ENOMEM. */
int sim_plan_add(struct sim_plan *plan, struct sim_planned planned);
struct sim_planned sim_plan_take(struct sim_plan *plan);
void sim_plan_free(struct sim_plan *plan);

/* What stood in the dump when head was `end`. */
struct sim_log_entry {
	uint64_t end;
	uint64_t fnv_total;
	uint64_t seen_ts_ns;
	struct hmb_sim_counts counts;
};

struct sim_log {
	struct sim_log_entry *entries;
	uint64_t capacity;
	uint64_t count; /* ever written */
};

struct sim_fault {
	uint32_t twist; /* waiting for its place */
	uint32_t seq;
	uint64_t argument;
	uint64_t cursor;
	uint64_t bytes;
	uint64_t record; /* its number */
};

struct sim_clock {
	uint64_t now_ns; /* virtual */
	uint64_t even_ns; /* as if records came evenly */
	uint64_t step_ns;
	uint64_t step_rest; /* of a nanosecond, in 1/rate */
	uint64_t rest;
	uint64_t in_burst;
	int64_t shift_ns; /* between virtual time and ts_ns */
};

struct sim_pace {
	uint64_t origin_ns; /* CLOCK_MONOTONIC */
	uint64_t origin_produced;
	uint64_t origin_clock_ns; /* virtual */
	uint32_t started;
};

struct sim_table; /* table.c */
struct sim_ftl; /* ftl.c */

struct hmb_sim {
	struct hmb_sim_config config;
	struct hmb_producer producer;
	struct sim_record next;
	uint32_t have_next;
	uint32_t hold; /* finished records are not to be shown yet */
	uint32_t stop;
	uint32_t blocked;
	uint32_t epoch_number;
	uint32_t have_last; /* a record was published in this epoch */
	uint64_t max_need; /* bytes of the largest record so far */
	uint64_t produced;
	uint64_t published;
	uint64_t blocked_ns;
	uint64_t pending_drops;
	uint64_t seen_ts_ns; /* of the last record that a consumer sees, markers included */
	uint64_t fnv_total;
	uint64_t random;
	uint64_t replay_at;
	uint8_t *shadow; /* copy of the ring, or null: lend.c */
	uint64_t shadowed; /* up to this cursor */
	struct hmb_sim_counts closed; /* epochs that are over */
	struct hmb_sim_counts epoch;
	struct sim_log log;
	struct sim_fault fault;
	struct sim_clock clock;
	struct sim_pace pace;
	struct sim_plan plan;
	struct sim_table *table;
	struct sim_ftl *ftl;
};

/* ---- counts.c: the ledger ---- */
void sim_counts_begin(struct hmb_sim_counts *counts);
void sim_count_record(struct hmb_sim *sim, const struct sim_record *record, int straddles);
void sim_count_marker(struct hmb_sim *sim, const uint8_t *at, uint64_t left);
void sim_count_drops(struct hmb_sim *sim);
int sim_log_begin(struct hmb_sim *sim);
void sim_log_state(struct hmb_sim *sim);
void sim_next_epoch(struct hmb_sim *sim);

/* ---- publish.c: the next record into the ring ---- */
enum sim_outcome { SIM_PUBLISHED, SIM_DROPPED, SIM_BLOCKED };
enum sim_outcome sim_publish_next(struct hmb_sim *sim);
void sim_show(struct hmb_sim *sim);
uint8_t *sim_ring_at(const struct hmb_sim *sim, uint64_t cursor);

/* ---- lend.c ---- */
void sim_shadow(struct hmb_sim *sim);

/* ---- fault.c ---- */
/* R10: 1 if sim->next carries unknown flags, which a consumer was told to reject. */
int sim_count_unknown_flags(struct hmb_sim *sim, uint32_t need);
/* The record may be spoilt here, and a consumer can only see it one way. */
int sim_twist_fits(struct hmb_sim *sim, uint64_t record, uint32_t need);
void sim_twist_seq(struct hmb_sim *sim);
/* Spoil the record just finished; 1 if it must not be counted as a record of the dump. */
int sim_twist_record(struct hmb_sim *sim, uint64_t record, uint32_t need);
/* Spoil the marker just written; 1 if it is no marker any more. */
int sim_twist_marker(struct hmb_sim *sim, uint64_t cursor, uint64_t left);

/* ---- sources: fill sim->next; 0, or -ENODATA at the end ---- */
int sim_next(struct hmb_sim *sim);
int sim_table_begin(struct hmb_sim *sim);
int sim_table_next(struct hmb_sim *sim);
void sim_table_end(struct hmb_sim *sim);
int sim_ftl_begin(struct hmb_sim *sim);
int sim_ftl_next(struct hmb_sim *sim);
void sim_ftl_end(struct hmb_sim *sim);
int sim_replay_next(struct hmb_sim *sim);
/* Start sim->next: header set, payload unset but its padding zero. */
void sim_stage(struct hmb_sim *sim, uint64_t time_ns, uint16_t opcode, uint8_t cpu, uint8_t flags,
	       uint32_t payload_len);
void sim_fill_random(uint64_t *state, uint8_t *to, uint32_t bytes);
/* One step of the virtual clock; the time of the next record. */
uint64_t sim_clock_step(struct hmb_sim *sim);

#endif
