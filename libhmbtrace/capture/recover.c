// SPDX-License-Identifier: Apache-2.0
/*
 * What a leftover spool is worth: whether its bytes are those that were committed, whether the
 * ring that is there now is the one it was filled from, and which of the two has the last pass.
 */
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "pass.h"
#include "record.h"
#include "spool.h"
#include "sum.h"

/* ---- the spool against its sums ---- */

static int block_intact(const struct ring_of_bytes *ring, uint64_t number, uint64_t head,
			const struct hmb_sum *open)
{
	uint64_t from = number * ring->block, to = HMB_MIN(from + ring->block, head);
	const struct block_sum *kept = &ring->sums[number % ring->count];
	struct hmb_sum sum = { 0 };

	sum_words(&sum, ring->bytes + from % ring->size, from / SUM_WORD, to / SUM_WORD);
	if (to - from < ring->block)
		return !memcmp(&sum, open, sizeof(sum));
	return kept->number == number && kept->check == check_of(number, &sum, sizeof(sum));
}

/* Compare [tail, head); back come the bounds of the blocks that are damaged, equal where none is. */
static int verify_ring(const struct ring_of_bytes *ring, uint64_t tail, uint64_t head,
		       const struct hmb_sum *open, uint64_t *from, uint64_t *to)
{
	int err = 0;

	*from = *to = head;
	for (uint64_t number = tail / ring->block; number * ring->block < head; number++) {
		if (block_intact(ring, number, head, open))
			continue;
		if (!err)
			*from = number * ring->block;
		*to = HMB_MIN((number + 1) * ring->block, head);
		err = -EBADMSG;
	}
	return err;
}

int hmb_spool_verify(const struct hmb_spool *spool, struct hmb_spool_damage *damage)
{
	struct ring_of_bytes data = spool_data(spool), journal = spool_journal(spool);
	struct hmb_spool_damage found;
	struct hmb_writer_commit written;
	struct hmb_commit last;
	int err, journal_err;

	hmb_spool_read_commit(spool, &last);
	hmb_spool_read_writer(spool, &written);
	err = verify_ring(&data, written.data_tail, last.data_head, &last.data_sum,
			  &found.data_from, &found.data_to);
	journal_err = verify_ring(&journal, written.journal_tail, last.journal_head,
				  &last.journal_sum, &found.journal_from, &found.journal_to);
	if (damage)
		*damage = found;
	return err ? err : journal_err;
}

/* ---- the spool against the ring ---- */

/* The last pass, taken once more from the ring into buffers of its own. */
struct again {
	struct hmb_state state;
	struct hmb_sink sink;
};

static void forget(struct again *again)
{
	free(again->sink.data);
	free(again->sink.events);
}

static int64_t take_again(const struct hmb_spool *spool, const struct hmb_ring *ring,
			  const struct hmb_commit *last, const struct hmb_options *options,
			  struct again *again)
{
	uint64_t span = last->tail_after - last->tail_before;
	struct hmb_sink *sink = &again->sink;

	/* A span may be long where a marker skips; what came of it did fit into the spool. */
	sink->data_cap = HMB_MIN(span, spool->data_size) + hmb_collect_slack();
	sink->events_cap = spool->journal_size + 2 * hmb_collect_min_events();
	sink->data = calloc(1, sink->data_cap);
	sink->events = calloc(1, sink->events_cap);
	if (!sink->data || !sink->events)
		return -ENOMEM;
	return hmb_collect_upto(ring, &again->state, options, sink, last->head_seen,
				last->tail_before);
}

static uint8_t *data_at(const struct hmb_spool *spool, uint64_t pos)
{
	return spool->data + pos % spool->data_size;
}

/* Whether what was taken again is what the spool holds. */
static int data_same(const struct hmb_spool *spool, uint64_t from, const struct again *again)
{
	return !memcmp(again->sink.data, data_at(spool, from), again->sink.data_len);
}

/*
 * Put what was taken again in place of what the spool holds; kept only where the sums, which
 * were made of the ring's bytes when they were collected, agree with all of it.
 */
static int data_repaired(const struct hmb_spool *spool, uint64_t from, const struct again *again)
{
	uint64_t length = again->sink.data_len;
	uint8_t *damaged = malloc(length + 1), *place = data_at(spool, from);
	int repaired = 0;

	if (!damaged)
		return 0;
	memcpy(damaged, place, length);
	memcpy(place, again->sink.data, length);
	repaired = !hmb_spool_verify(spool, NULL);
	if (!repaired)
		memcpy(place, damaged, length);
	free(damaged);
	return repaired;
}

typedef int (*judge_again)(const struct hmb_spool *spool, uint64_t from, const struct again *again);

static int again_fits(const struct hmb_spool *spool, const struct hmb_ring *ring,
		      const struct hmb_commit *previous, const struct hmb_commit *last,
		      const struct hmb_options *options, judge_again good)
{
	struct again again = { .state = previous->state };
	int fits = take_again(spool, ring, last, options, &again) >= 0 &&
		   again.state.tail == last->tail_after &&
		   previous->data_head + again.sink.data_len == last->data_head &&
		   good(spool, previous->data_head, &again);

	forget(&again);
	return fits;
}

static int ring_holds(const struct hmb_ring *ring, uint64_t cursor, const uint8_t *bytes,
		      uint64_t n)
{
	const uint8_t *area = ring->base + HMB_RECORD_AREA_OFF;
	uint64_t offset = cursor & (ring->ring_size - 1),
		 first = HMB_MIN(n, ring->ring_size - offset);

	return n <= ring->ring_size && !memcmp(area + offset, bytes, first) &&
	       !memcmp(area, bytes + first, n - first);
}

/* Whether what the last pass rejected still stands in the ring. */
static int same_rejects(const struct hmb_spool *spool, const struct hmb_ring *ring, uint64_t from,
			uint64_t to)
{
	const struct hmb_event *event;

	for (; from != to; from += sizeof(*event) + hmb_align8(event->length)) {
		event = (const void *)(spool->journal + from % spool->journal_size);
		if (to - from > spool->journal_size || event->magic != HMB_EVENT_MAGIC ||
		    event->length > to - from)
			return 0;
		if (event->kind == HMB_EV_REJECT &&
		    !ring_holds(ring, event->cursor, (const uint8_t *)(event + 1), event->length))
			return 0;
	}
	return 1;
}

/* 1 when the ring still offers the last pass and it is `good`, 0 when not, -EBADMSG: unknown. */
static int pass_stands(const struct hmb_spool *spool, const struct hmb_ring *ring,
		       const struct hmb_commit *last, const struct hmb_options *options,
		       judge_again good)
{
	/* R9's stop ends a pass early; where this one ended, the commit says. */
	struct hmb_options now = { .keep_unknown_flags = options->keep_unknown_flags };
	/* The daemon may have been restarted with the other choice (R10). */
	struct hmb_options other = { .keep_unknown_flags = !options->keep_unknown_flags };
	struct hmb_commit previous;

	if (!read_previous(spool, &previous))
		/* Without it nothing can be compared: rather a loss that is told than a record twice. */
		return next_was_begun(spool) ? 0 : -EBADMSG;
	if (previous.state.tail != last->tail_before)
		return 0;
	return same_rejects(spool, ring, previous.journal_head, last->journal_head) &&
	       (again_fits(spool, ring, &previous, last, &now, good) ||
		again_fits(spool, ring, &previous, last, &other, good));
}

/* Whether cursors alone allow that the last pass is still to be handed back. */
static int tail_is_before(const struct hmb_ring *ring, const struct hmb_ring_view *view,
			  const struct hmb_commit *last)
{
	return view->tail == last->tail_before &&
	       view->head - last->tail_before >= last->head_seen - last->tail_before &&
	       last->tail_after - last->tail_before <= ring->ring_size;
}

int hmb_spool_continues(struct hmb_spool *spool, const struct hmb_ring *ring,
			const struct hmb_options *options)
{
	int damaged = hmb_spool_verify(spool, NULL), stands = 0;
	struct hmb_ring_view view;
	struct hmb_commit last;

	hmb_spool_read_commit(spool, &last);
	hmb_ring_view(ring, &view);
	if (!hmb_cursors_valid(view.head, view.tail, ring->ring_size))
		return damaged;
	if (view.tail == last.tail_after)
		return damaged ? damaged : 1;
	if (tail_is_before(ring, &view, &last))
		stands = pass_stands(spool, ring, &last, options,
				     damaged ? data_repaired : data_same);
	if (stands)
		return stands < 0 ? stands : 2;
	return damaged;
}

/* ---- the ring against a file ---- */

/* Ring bytes from tail on, as dump bytes, pass by pass. */
struct offered {
	struct hmb_state state;
	struct hmb_sink sink;
	uint64_t begin; /* of the last pass: dump bytes and ring cursor before it */
	uint64_t cursor;
	uint64_t rejected;
};

/* How many bytes at the begin of `offered`, whole records, are those that the file ends with. */
static uint64_t known_bytes(const uint8_t *offered, uint64_t length, const uint8_t *end, uint64_t n)
{
	uint64_t known = 0;

	for (uint64_t at = 0; at + HMB_RECORD_HDR_SIZE <= length;) {
		at += hmb_dumped_span((const struct hmb_record_hdr *)(offered + at));
		if (at <= HMB_MIN(n, length) && !memcmp(end + n - at, offered, at))
			known = at;
	}
	return known;
}

static int one_pass(const struct hmb_ring *ring, const struct hmb_options *options,
		    const struct hmb_ring_view *view, struct offered *offered)
{
	offered->begin = offered->sink.data_len;
	offered->cursor = offered->state.tail;
	offered->rejected = offered->state.counters.rejected_bytes;
	offered->sink.events_len = 0;
	if (offered->sink.data_cap - offered->sink.data_len < hmb_collect_min_data())
		return 0;
	return hmb_collect_upto(ring, &offered->state, options, &offered->sink, view->head,
				view->tail) > 0;
}

/* The ring cursor behind `known` dump bytes that end in the last pass; 0 where it cannot be said. */
static uint64_t cursor_behind(const struct offered *offered, uint64_t known)
{
	if (known == offered->sink.data_len)
		return offered->state.tail;
	if (offered->state.counters.rejected_bytes != offered->rejected)
		return 0;
	return offered->cursor + (known - offered->begin);
}

static int64_t match(const struct hmb_ring *ring, const struct hmb_options *options,
		     const struct hmb_ring_view *view, struct offered *offered, const uint8_t *end,
		     uint64_t n)
{
	uint64_t found = 0;

	while (one_pass(ring, options, view, offered)) {
		uint64_t known = known_bytes(offered->sink.data, offered->sink.data_len, end, n);
		uint64_t cursor = known > offered->begin ? cursor_behind(offered, known) : 0;

		if (cursor)
			found = cursor - view->tail;
	}
	return (int64_t)found;
}

int64_t hmb_recover_known(const struct hmb_ring *ring, const struct hmb_options *options,
			  const uint8_t *end, uint64_t n)
{
	struct hmb_options now = { .keep_unknown_flags = options->keep_unknown_flags };
	struct offered offered = { 0 };
	struct hmb_ring_view view;
	int64_t found = 0;

	hmb_ring_view(ring, &view);
	if (hmb_state_begin(&offered.state, ring) || view.head == view.tail)
		return 0;
	offered.sink.data_cap = n + 2 * hmb_collect_min_data();
	offered.sink.events_cap = ring->ring_size + 2 * hmb_collect_min_events();
	offered.sink.data = calloc(1, offered.sink.data_cap);
	offered.sink.events = calloc(1, offered.sink.events_cap);
	if (offered.sink.data && offered.sink.events)
		found = match(ring, &now, &view, &offered, end, n);
	else
		found = -ENOMEM;
	free(offered.sink.data);
	free(offered.sink.events);
	return found;
}
