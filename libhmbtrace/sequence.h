/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sequence numbers and times are worth (SPEC R3.4, R12, R16): the same for rings and dumps.
 *
 * Producers number markers in three ways: with the seq of the record that
 * follows, with a seq of their own, or not at all.  Which one it is shows only
 * when the next record comes, so a marker is remembered until then and
 * believed only if it lies between the two records around it.
 */
#ifndef HMB_SEQUENCE_H
#define HMB_SEQUENCE_H

#include "core.h"

#define HMB_HALF_SEQ 0x80000000u /* R12: a seq so far ahead is behind */

/* Further on, by less than half of all numbers. */
static inline int hmb_seq_ahead(uint32_t before, uint32_t after)
{
	return after - before - 1 < HMB_HALF_SEQ - 1;
}

/* R16: earlier, or so much later that it can only be earlier than zero (ts_ns that went below it). */
static inline int hmb_time_went_back(uint64_t before, uint64_t after)
{
	return after < before || after - before > INT64_MAX;
}

/* A marker after the record `last`. */
static inline void hmb_remember_marker(struct hmb_marker_run *run, uint32_t last, uint32_t seq)
{
	uint32_t from = run->seen ? run->seq : last;

	if (!hmb_seq_ahead(from, seq) || seq - last >= HMB_HALF_SEQ)
		return;
	run->missing = (run->seen ? run->missing : 0) + (seq - from) - 1;
	run->seq = seq;
	run->seen = 1;
}

/* Records missing between `last` and the record `seq`, which is ahead of it by less than 2^31. */
static inline uint32_t hmb_missing_records(const struct hmb_marker_run *run, uint32_t last,
					   uint32_t seq)
{
	uint32_t beyond = seq - run->seq;

	if (!run->seen || run->seq - last > seq - last)
		return seq - last - 1;
	return run->missing + (beyond ? beyond - 1 : 0);
}

/* In order: ahead, and nothing but markers between. */
static inline int hmb_seq_follows(const struct hmb_marker_run *run, uint32_t last, uint32_t seq)
{
	return hmb_seq_ahead(last, seq) && !hmb_missing_records(run, last, seq);
}

/*
 * R12: the order broke at record A, which came after P; now B is there.  Rejected bytes may have
 * held a record for every 32 of them.
 */
struct hmb_seq_question {
	uint32_t p;
	uint32_t a;
	uint32_t b;
	uint64_t rejected_before; /* between P and A, bytes */
	uint64_t rejected_after; /* between A and B */
	uint64_t rejected_somewhere; /* a reader's: in the capture, nobody knows where */
	const struct hmb_marker_run *before; /* markers between P and A */
	const struct hmb_marker_run *after; /* between A and B */
	const struct hmb_marker_run *all; /* between P and B */
};

enum hmb_seq_answer {
	HMB_SEQ_BREAK, /* what it looked like */
	HMB_SEQ_EITHER, /* it fits both: told as a break, since a loss must not pass for a glitch */
	HMB_SEQ_GLITCH, /* A's seq alone was wrong: B follows from P, and not from A */
};

/* Numbers missing between P and B beyond A's; -1: A cannot have taken one of them. */
static inline int64_t hmb_seq_beyond(const struct hmb_seq_question *q)
{
	if (!hmb_seq_ahead(q->p, q->b))
		return -1;
	return (int64_t)hmb_missing_records(q->all, q->p, q->b) - 1;
}

/* Whether `missing` numbers between two records may be in so many rejected bytes. */
static inline int hmb_seq_explained(const struct hmb_marker_run *run, uint32_t from, uint32_t to,
				    uint64_t rejected_bytes)
{
	return hmb_seq_ahead(from, to) &&
	       hmb_missing_records(run, from, to) <= rejected_bytes / HMB_RECORD_HDR_SIZE;
}

/* B is where P leads to, if A is one of the records between. */
static inline int hmb_seq_fits(const struct hmb_seq_question *q)
{
	int64_t beyond = hmb_seq_beyond(q);
	uint64_t room = q->rejected_after / HMB_RECORD_HDR_SIZE;

	/* Where the bytes before A explain it as it is, they explain nothing else. */
	if (!hmb_seq_explained(q->before, q->p, q->a, q->rejected_before))
		room += q->rejected_before / HMB_RECORD_HDR_SIZE;
	if (beyond < 0 || (uint64_t)beyond <= room)
		return beyond >= 0;
	return q->a - q->p >= q->b - q->p &&
	       (uint64_t)beyond <= q->rejected_somewhere / HMB_RECORD_HDR_SIZE;
}

static inline enum hmb_seq_answer hmb_seq_answer(const struct hmb_seq_question *q)
{
	if (!hmb_seq_fits(q))
		return HMB_SEQ_BREAK;
	return hmb_seq_explained(q->after, q->a, q->b, q->rejected_after) ? HMB_SEQ_EITHER
									  : HMB_SEQ_GLITCH;
}

#endif
