// SPDX-License-Identifier: Apache-2.0
/*
 * What to believe (SPEC R3, R4, R8, R9, R10): judges a private copy of ring
 * bytes.  Nearly all records go through take_plain_run(), a loop without
 * calls; whatever is unusual goes through step(), one thing at a time.  What
 * is kept is moved together in place, what is not goes to the events.
 */
#include <string.h>

#include "core.h"
#include "pass.h"
#include "sequence.h"

#define ALIKE_ENOUGH 4u /* records of one length in a row before more of them are looked for */
#define CHAIN 4u /* R9: records in sequence that make a restart believable */
/* Waiting for more of a chain, leave room for it: the largest record and a lap end before it. */
#define ROOM_TO_WAIT 8192u

/* What one step came to. */
enum outcome {
	GO_ON,
	PASS_ENDS, /* lap end, or wait for more of the ring */
	NO_ROOM,
	CORRUPT,
};

/* ---- headers ---- */

/* A private copy of the header at cursor, from the window or straight from the ring. */
static void header_at(const struct pass *pass, uint64_t cursor, struct hmb_record_hdr *hdr)
{
	if (cursor - pass->start + sizeof(*hdr) <= pass->copied - pass->start)
		memcpy(hdr, at(pass, cursor), sizeof(*hdr));
	else
		copy_ring(pass->ring, hdr, cursor, sizeof(*hdr));
}

/* A quick no, where the window holds the bytes: scans ask for every eighth byte. */
static int surely_no_header(const struct pass *pass, uint64_t cursor)
{
	uint32_t magic;

	if (cursor - pass->start + sizeof(magic) > pass->copied - pass->start)
		return 0;
	memcpy(&magic, at(pass, cursor), sizeof(magic));
	return magic != HMB_RECORD_MAGIC;
}

/* R8: whether a header at cursor can be believed. */
static int valid_at(const struct pass *pass, uint64_t cursor, struct hmb_record_hdr *hdr)
{
	if (surely_no_header(pass, cursor))
		return 0;
	if (left_in_lap(pass->ring, cursor) < sizeof(*hdr) || pass->head - cursor < sizeof(*hdr))
		return 0;
	header_at(pass, cursor, hdr);
	if (hdr->magic != HMB_RECORD_MAGIC)
		return 0;
	if (hmb_is_marker(hdr))
		return 1;
	return hdr->payload_len <= HMB_RECORD_MAX_PAYLOAD &&
	       hmb_record_span(hdr) <= pass->head - cursor;
}

/* Where the thing after a valid header begins (R3: also across the lap's end). */
static uint64_t successor_of(const struct pass *pass, uint64_t cursor,
			     const struct hmb_record_hdr *hdr)
{
	uint64_t end, left;

	if (hmb_is_marker(hdr))
		return cursor + left_in_lap(pass->ring, cursor);
	end = cursor + hmb_record_span(hdr);
	left = left_in_lap(pass->ring, end);
	return left < HMB_RECORD_HDR_SIZE ? end + left : end;
}

/* What follows a valid header is valid too, or is not published yet. */
static int continues(const struct pass *pass, uint64_t cursor, const struct hmb_record_hdr *hdr)
{
	struct hmb_record_hdr next;
	uint64_t successor = successor_of(pass, cursor, hdr);

	return reached(successor, pass->head) || valid_at(pass, successor, &next);
}

/* R8: the record's successor stands where it says and carries the next seq. */
static int confirmed(const struct pass *pass, const struct hmb_record_hdr *hdr)
{
	struct hmb_record_hdr next;
	uint64_t successor = successor_of(pass, pass->cursor, hdr);

	return hmb_record_span(hdr) <= left_in_lap(pass->ring, pass->cursor) &&
	       !reached(successor, pass->head) && valid_at(pass, successor, &next) &&
	       next.seq == hdr->seq + 1;
}

/* R8: a believable header with the next seq stands inside the record's own span. */
static int swallows_next(const struct pass *pass, const struct hmb_record_hdr *hdr)
{
	uint64_t end = pass->cursor + hmb_record_span(hdr);
	struct hmb_record_hdr inner;

	for (uint64_t c = pass->cursor + HMB_RECORD_ALIGN; c != end; c += HMB_RECORD_ALIGN)
		if (valid_at(pass, c, &inner) && inner.seq == hdr->seq + 1 &&
		    continues(pass, c, &inner))
			return 1;
	return 0;
}

/* ---- keeping and cutting ---- */

/* Move the good bytes up to the cursor to their place in the sink. */
static void settle(struct pass *pass)
{
	uint64_t n = pass->cursor - pass->run;

	if (n && pass->run - pass->start != pass->out)
		memmove(pass->buffer + pass->out, at(pass, pass->run), n);
	pass->out += n;
	pass->run = pass->cursor;
}

/* Pass over n bytes without keeping them. */
static void cut(struct pass *pass, uint64_t n)
{
	settle(pass);
	pass->cursor += n;
	pass->run = pass->cursor;
}

/* Cut n bytes out, into the rejects. */
void reject(struct pass *pass, uint16_t reason, uint64_t n)
{
	struct hmb_event *event;

	settle(pass);
	event = emit(pass, HMB_EV_REJECT, pass->cursor, at(pass, pass->cursor), (uint32_t)n);
	event->reason = reason;
	pass->state->counters.rejected_bytes += n;
	cut(pass, n);
}

/* ---- the steps ---- */

/* Make sure that the copy reaches up to a cursor that is not beyond head. */
static void extend_copy(struct pass *pass, uint64_t upto)
{
	if (upto - pass->start <= pass->copied - pass->start)
		return;
	copy_ring(pass->ring, at(pass, pass->copied), pass->copied, upto - pass->copied);
	pass->copied = upto;
}

static enum outcome take_gap_marker(struct pass *pass, uint64_t left)
{
	struct hmb_record_hdr marker = { .ts_ns = pass->state->last_ts_ns };

	memcpy(&marker, at(pass, pass->cursor), left);
	marker = (struct hmb_record_hdr){ .magic = marker.magic,
					  .seq = marker.seq,
					  .ts_ns = marker.ts_ns,
					  .flags = HMB_REC_FLAG_WRAP_MARKER };
	account_marker(pass, marker.seq);
	pass->state->counters.partial_markers++;
	settle(pass);
	memcpy(pass->buffer + pass->out, &marker, sizeof(marker));
	pass->out += sizeof(marker);
	return PASS_ENDS;
}

/* R3.2, R4: fewer than 32 bytes left in the lap. */
static enum outcome take_gap(struct pass *pass, uint64_t left)
{
	uint32_t magic;
	enum outcome outcome = PASS_ENDS;

	if (pass->head - pass->cursor < left)
		return PASS_ENDS;
	extend_copy(pass, pass->cursor + left);
	memcpy(&magic, at(pass, pass->cursor), sizeof(magic));
	if (magic == HMB_RECORD_MAGIC)
		outcome = take_gap_marker(pass, left);
	else
		pass->state->counters.plain_gaps++;
	cut(pass, left);
	return outcome;
}

/* R4: what a dumped marker looks like; its original goes to the rejects if that changes it. */
static void clean_marker(struct pass *pass, struct hmb_record_hdr *marker)
{
	struct hmb_event *event;

	if (!marker->payload_len && !(marker->flags & ~HMB_KNOWN_RECORD_FLAGS))
		return;
	event = emit(pass, HMB_EV_REJECT, pass->cursor, marker, sizeof(*marker));
	event->reason = HMB_REJECT_MARKER;
	pass->state->counters.rejected_bytes += sizeof(*marker);
	pass->state->counters.markers_cleaned++;
	marker->payload_len = 0;
	marker->flags &= HMB_KNOWN_RECORD_FLAGS;
}

/* R3.1: a whole marker; the rest of the lap is skipped, but never past head. */
static enum outcome take_marker(struct pass *pass, struct hmb_record_hdr *marker)
{
	uint64_t left = left_in_lap(pass->ring, pass->cursor);

	if (pass->head - pass->cursor < left)
		return PASS_ENDS;
	account_marker(pass, marker->seq);
	clean_marker(pass, marker);
	pass->state->counters.wrap_markers++;
	pass->cursor += sizeof(*marker);
	settle(pass);
	cut(pass, left - sizeof(*marker));
	return PASS_ENDS;
}

/* R11: the last word holds what padding there is. */
static void zero_padding(struct hmb_record_hdr *hdr)
{
	uint64_t used = hdr->payload_len & 7, word;
	uint8_t *last = (uint8_t *)(hdr + 1) + hdr->payload_len - used;

	if (!used)
		return;
	memcpy(&word, last, sizeof(word));
	word &= ~0ull >> (64 - 8 * used);
	memcpy(last, &word, sizeof(word));
}

static void note_first(struct hmb_state *state, const struct hmb_record_hdr *hdr)
{
	if (state->have_first)
		return;
	state->have_first = 1;
	state->first_seq = hdr->seq;
	state->first_ts_ns = hdr->ts_ns;
}

static void keep_record(struct pass *pass, const struct hmb_record_hdr *hdr)
{
	struct hmb_counters *counters = &pass->state->counters;
	uint64_t span = hmb_record_span(hdr);

	note_first(pass->state, hdr);
	zero_padding((struct hmb_record_hdr *)at(pass, pass->cursor));
	counters->records++;
	counters->truncated += !!(hdr->flags & HMB_REC_FLAG_TRUNCATED);
	counters->straddled += span > left_in_lap(pass->ring, pass->cursor);
	pass->cursor += span;
}

/* A record that R8 believes. */
static enum outcome take_record(struct pass *pass, const struct hmb_record_hdr *hdr)
{
	struct hmb_state *state = pass->state;
	int unknown = !!(hdr->flags & ~HMB_KNOWN_RECORD_FLAGS);

	account_record(pass, hdr);
	expire_episode(pass, hdr->seq);
	state->last_ts_ns = hdr->ts_ns;
	state->counters.unknown_flags += unknown;
	if (unknown && !pass->options->keep_unknown_flags) {
		state->counters.rejected_records++;
		reject(pass, HMB_REJECT_UNKNOWN_FLAGS, hmb_record_span(hdr));
	} else {
		keep_record(pass, hdr);
	}
	return GO_ON;
}

/* ---- damage (R9) ---- */

enum verdict {
	PASS_OVER,
	RESUME,
	WAIT_FOR_MORE, /* a chain that ends at head: the next pass may confirm it */
};

/* Valid headers one after another, with the seqs of one sequence. */
struct chain {
	uint32_t links;
	uint32_t records;
	uint32_t seq; /* of the last record */
	uint32_t
		skips; /* markers since, and lap ends that may be one: each may have used a number */
};

static int joins(struct chain *chain, const struct hmb_record_hdr *hdr)
{
	if (hmb_is_marker(hdr)) {
		chain->skips++;
	} else if (chain->records && hdr->seq - chain->seq - 1 > chain->skips) {
		return 0;
	} else {
		chain->seq = hdr->seq;
		chain->skips = 0;
		chain->records++;
	}
	chain->links++;
	return 1;
}

/* The chain that begins with the header at cursor, up to CHAIN records; 1: it ends at head. */
static int follow_chain(const struct pass *pass, uint64_t cursor, struct hmb_record_hdr *hdr,
			struct chain *chain)
{
	while (joins(chain, hdr)) {
		uint64_t end = cursor + hmb_record_span(hdr);

		cursor = successor_of(pass, cursor, hdr);
		if (reached(cursor, pass->head))
			return 1;
		chain->skips += !hmb_is_marker(hdr) && cursor != end;
		if (chain->records == CHAIN || !valid_at(pass, cursor, hdr))
			return 0;
	}
	return 0;
}

/* R9.3: whether records that do not follow from the last good one are a restart. */
static enum verdict judge_chain(struct pass *pass, uint64_t cursor, struct hmb_record_hdr *hdr)
{
	struct hmb_state *state = pass->state;
	struct chain chain = { 0 };
	int at_head = follow_chain(pass, cursor, hdr, &chain);
	int grown = state->chain && cursor == pass->start && chain.links > state->chain;
	int crowded = pass->ring->ring_size - (pass->head - cursor) < ROOM_TO_WAIT;

	if (chain.records == CHAIN)
		return RESUME;
	if (!at_head)
		return PASS_OVER;
	if (grown || crowded || (state->chain_may_end && cursor == pass->start))
		return RESUME;
	state->chain = (uint8_t)HMB_MIN(chain.links, UINT8_MAX);
	state->chain_may_end = 0;
	return WAIT_FOR_MORE;
}

/*
 * R9: whether the stream can go on at cursor.  An earlier lap can have left records here that
 * are behind by what a lap holds at most; nothing older, once a whole lap was passed over.
 */
static enum verdict judge_candidate(struct pass *pass, uint64_t cursor)
{
	const struct hmb_state *state = pass->state;
	uint32_t last = state->pending.state ? state->pending.seq_before : state->last_seq;
	uint64_t rejected = state->damaged_bytes + (cursor - pass->cursor);
	struct hmb_record_hdr hdr;

	if (!valid_at(pass, cursor, &hdr) || !continues(pass, cursor, &hdr))
		return PASS_OVER;
	if (!state->have_seq || hmb_seq_ahead(last, hdr.seq))
		return RESUME;
	if (last - hdr.seq <= pass->ring->ring_size / HMB_RECORD_HDR_SIZE &&
	    rejected < pass->ring->ring_size)
		return PASS_OVER;
	return judge_chain(pass, cursor, &hdr);
}

/* R9: reject up to where the stream goes on, as far as the window and the room reach. */
static enum outcome resync(struct pass *pass, uint16_t reason, uint64_t from)
{
	struct hmb_state *state = pass->state;
	uint64_t room = event_room(pass->sink) - HMB_EVENT_SLACK;
	uint64_t n = HMB_MIN(pass->window_end - pass->cursor, room & ~(uint64_t)7);
	uint64_t limit = pass->cursor + n, c = from;
	enum verdict verdict = PASS_OVER;

	for (; c != limit; c += HMB_RECORD_ALIGN) {
		verdict = judge_candidate(pass, c);
		if (verdict != PASS_OVER)
			break;
	}
	/* At the limit nobody has looked yet: the next step, or the next pass, begins there. */
	state->resync = verdict == RESUME ? 0 : (uint8_t)reason;
	if (verdict != WAIT_FOR_MORE)
		state->chain = state->chain_may_end = 0;
	state->damaged_bytes += c - pass->cursor;
	if (c != pass->cursor)
		reject(pass, reason, c - pass->cursor);
	return verdict == WAIT_FOR_MORE ? PASS_ENDS : GO_ON;
}

static enum outcome enter_resync(struct pass *pass, uint16_t reason)
{
	if (pass->options->stop_on_corrupt)
		return CORRUPT;
	pass->state->counters.resyncs++;
	pass->state->counters.lying_lengths += reason == HMB_REJECT_LYING_LENGTH;
	return resync(pass, reason, pass->cursor + HMB_RECORD_ALIGN);
}

/* One thing at the cursor: gap, marker, record or damage. */
static enum outcome step(struct pass *pass)
{
	uint64_t left = left_in_lap(pass->ring, pass->cursor);
	struct hmb_record_hdr hdr;

	if (event_room(pass->sink) < 2 * HMB_EVENT_SLACK)
		return NO_ROOM;
	if (pass->state->resync)
		return resync(pass, pass->state->resync, pass->cursor);
	if (left < HMB_RECORD_HDR_SIZE)
		return take_gap(pass, left);
	/* One read of a header decides, and is the one that is kept (R8). */
	if (pass->head - pass->cursor >= sizeof(hdr))
		extend_copy(pass, pass->cursor + sizeof(hdr));
	if (!valid_at(pass, pass->cursor, &hdr))
		return enter_resync(pass, HMB_REJECT_DAMAGED);
	if (hmb_is_marker(&hdr))
		return take_marker(pass, (struct hmb_record_hdr *)at(pass, pass->cursor));
	extend_copy(pass, pass->cursor + hmb_record_span(&hdr));
	if (!confirmed(pass, &hdr) && swallows_next(pass, &hdr))
		return enter_resync(pass, HMB_REJECT_LYING_LENGTH);
	return take_record(pass, &hdr);
}

/* ---- the fast path ---- */

static int plain_run_possible(const struct hmb_state *state)
{
	return state->have_seq && !state->markers.seen && !state->resync && !state->episode_open &&
	       state->have_first && !state->damaged_bytes && !state->pending.state;
}

/* A run of plain records, as far as it was taken. */
struct run {
	struct hmb_record_hdr *next; /* in the window, with the magic */
	const struct hmb_record_hdr *last; /* that was taken; NULL: none */
	uint32_t seq; /* of the last */
};

/* Where a run must end.  The window, not the copy: that may reach into the next lap. */
struct bounds {
	const uint8_t *window;
	const uint8_t *head;
};

static struct hmb_record_hdr *behind(struct hmb_record_hdr *hdr, uint64_t bytes)
{
	return (void *)((uint8_t *)hdr + bytes);
}

static int is_plain(const struct hmb_record_hdr *hdr, uint32_t seq)
{
	return hdr->seq == seq && !hdr->flags && hdr->payload_len <= HMB_RECORD_MAX_PAYLOAD;
}

/* R8: what follows a plain record confirms it. */
static int confirms(const struct bounds *bounds, struct hmb_record_hdr *next, uint32_t seq)
{
	if ((const uint8_t *)(next + 1) > bounds->window || next->magic != HMB_RECORD_MAGIC ||
	    next->seq != seq)
		return 0;
	return hmb_is_marker(next) ||
	       (next->payload_len <= HMB_RECORD_MAX_PAYLOAD &&
		(const uint8_t *)behind(next, hmb_record_span(next)) <= bounds->head);
}

/* How many records like the plain one at first, of the same length, follow each other from there. */
static uint64_t count_alike(const struct hmb_record_hdr *first, const uint8_t *limit, uint64_t span)
{
	const uint8_t *at = (const uint8_t *)first;
	uint64_t most = (uint64_t)(limit - at) / span, n = 0;

	for (; n < most; n++, at += span) {
		const struct hmb_record_hdr *hdr = (const void *)at;

		if (hdr->magic != HMB_RECORD_MAGIC || hdr->seq != first->seq + (uint32_t)n ||
		    hdr->flags || hdr->payload_len != first->payload_len)
			break;
	}
	return n;
}

/*
 * Where records are equally long, the next one's place does not depend on what
 * this one says, and the processor looks at several at once.  Each is confirmed
 * by the one after it; the last is left.
 */
static struct run take_alike(struct run run, const uint8_t *limit)
{
	uint64_t span = hmb_record_span(run.next), n = count_alike(run.next, limit, span);

	if (n < 2)
		return run;
	for (uint64_t i = 0; run.next->payload_len & 7 && i < n - 1; i++)
		zero_padding(behind(run.next, i * span));
	run.last = behind(run.next, (n - 2) * span);
	run.next = behind(run.next, (n - 1) * span);
	run.seq += (uint32_t)(n - 1);
	return run;
}

/*
 * Records without flags, in sequence, whose successor stands in the window
 * and confirms them (R8): all that step() would do to them is count.
 */
static struct run take_plain(struct run run, const struct bounds bounds)
{
	uint32_t alike = 0; /* records of the same length in a row */

	while (is_plain(run.next, run.seq + 1)) {
		struct hmb_record_hdr *hdr = run.next, *next = behind(hdr, hmb_record_span(hdr));

		if (!confirms(&bounds, next, run.seq + 2))
			break;
		zero_padding(hdr);
		run = (struct run){ .next = next, .last = hdr, .seq = run.seq + 1 };
		alike = next->payload_len == hdr->payload_len ? alike + 1 : 0;
		if (alike < ALIKE_ENOUGH)
			continue;
		run = take_alike(run, bounds.window);
		alike = 0;
	}
	return run;
}

static void take_plain_run(struct pass *pass)
{
	struct hmb_state *state = pass->state;
	struct bounds bounds = { .window = at(pass, pass->window_end),
				 .head = at(pass, pass->head) };
	struct run run = { .next = (void *)at(pass, pass->cursor), .seq = state->last_seq };

	if ((const uint8_t *)(run.next + 1) > bounds.window || run.next->magic != HMB_RECORD_MAGIC)
		return;
	run = take_plain(run, bounds);
	if (!run.last)
		return;
	state->counters.records += run.seq - state->last_seq;
	state->last_seq = run.seq;
	state->last_ts_ns = run.last->ts_ns;
	pass->cursor = pass->start + (uint64_t)((const uint8_t *)run.next - pass->buffer);
}

/* ---- all of a window ---- */

int judge(struct pass *pass)
{
	enum outcome outcome = GO_ON;

	while (outcome == GO_ON && !reached(pass->cursor, pass->window_end)) {
		if (plain_run_possible(pass->state))
			take_plain_run(pass);
		outcome = step(pass);
	}
	settle(pass);
	if (pass->cursor != pass->start)
		return 0;
	return outcome == NO_ROOM ? -ENOSPC : outcome == CORRUPT ? -EBADMSG : 0;
}
