/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a wrap marker's seq is worth (SPEC R3.4): the same for rings and dumps.
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

/* A marker after the record `last`. */
static inline void hmb_remember_marker(struct hmb_marker_run *run, uint32_t last, uint32_t seq)
{
	uint32_t ahead = seq - (run->seen ? run->seq : last);

	if (ahead == 0 || ahead >= HMB_HALF_SEQ || seq - last >= HMB_HALF_SEQ)
		return;
	run->missing = (run->seen ? run->missing : 0) + ahead - 1;
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

#endif
