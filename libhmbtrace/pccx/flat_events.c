// SPDX-License-Identifier: Apache-2.0
/* flatbuf events: order, and the merge of sorted runs. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define INSERTION_MOST 24u /* events sorted by insertion */
#define OPEN_MARK 0x80u /* in the type's last byte: catalog types are small */

static inline uint64_t start_of(const struct hmb_flat_event *event)
{
	uint64_t start;

	memcpy(&start, event->start_cycle, sizeof(start));
	return start;
}

uint64_t hmb_events_sorted(const struct hmb_flat_event *events, uint64_t n)
{
	for (uint64_t i = 1; i < n; i++)
		if (start_of(&events[i]) < start_of(&events[i - 1]))
			return i;
	return n;
}

static void insertion_sort(struct hmb_flat_event *events, uint64_t n)
{
	for (uint64_t i = 1; i < n; i++) {
		struct hmb_flat_event event = events[i];
		uint64_t start = start_of(&event), to = i;

		for (; to && start_of(&events[to - 1]) > start; to--)
			events[to] = events[to - 1];
		events[to] = event;
	}
}

/* Events of sorted ones that start before `start` (or at it, where equal is set). */
static uint64_t count_before(const struct hmb_flat_event *events, uint64_t n, uint64_t start,
			     int equal)
{
	uint64_t low = 0, high = n;

	while (low < high) {
		uint64_t middle = low + (high - low) / 2, found = start_of(&events[middle]);

		if (found < start || (equal && found == start))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void merge_into(struct hmb_flat_event *out, const struct hmb_flat_event *left,
		       const struct hmb_flat_event *left_end, const struct hmb_flat_event *right,
		       const struct hmb_flat_event *right_end)
{
	while (left < left_end && right < right_end) {
		if (start_of(right) < start_of(left))
			*out++ = *right++;
		else
			*out++ = *left++;
	}
	memcpy(out, left, (uint64_t)(left_end - left) * sizeof(*out)); /* right stands in place */
}

/* Two sorted halves. In nearly sorted traces only a few events around the middle overlap. */
static void merge_halves(struct hmb_flat_event *events, uint64_t half, uint64_t n,
			 struct hmb_flat_event *scratch)
{
	struct hmb_flat_event *right = events + half;
	uint64_t first, moved;

	if (start_of(right - 1) <= start_of(right))
		return;
	first = count_before(events, half, start_of(right), 1);
	moved = count_before(right, n - half, start_of(right - 1), 0);
	memcpy(scratch, events + first, (half - first) * sizeof(*scratch));
	merge_into(events + first, scratch, scratch + (half - first), right, right + moved);
}

void hmb_events_sort(struct hmb_flat_event *events, uint64_t n, struct hmb_flat_event *scratch)
{
	uint64_t half = n / 2;

	if (n <= INSERTION_MOST) {
		insertion_sort(events, n);
		return;
	}
	hmb_events_sort(events, half, scratch);
	hmb_events_sort(events + half, n - half, scratch);
	merge_halves(events, half, n, scratch);
}

static int compare_places(const void *left, const void *right)
{
	const struct hmb_place *a = left, *b = right;

	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	return a->ref < b->ref ? -1 : a->ref > b->ref;
}

/* Mark the events of the begins that wait; returns their number. */
static uint64_t mark_open(const struct hmb_open_table *open, uint64_t base,
			  struct hmb_flat_event *events, uint64_t n, struct hmb_place *places)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < open->size; i++) {
		struct hmb_open *slot = &open->slots[i];
		uint64_t row = (slot->ref - base) / sizeof(*events);

		if (!slot->pair || slot->ref < base || row >= n)
			continue;
		events[row].event_type_id[3] |= OPEN_MARK;
		places[count++] = (struct hmb_place){ start_of(&events[row]), slot->ref, slot };
	}
	return count;
}

/* A stable sort keeps marked events in the order of (start, ref): the i-th is the i-th place's. */
void hmb_events_settle(struct hmb_open_table *open, uint64_t base, struct hmb_flat_event *events,
		       uint64_t n, struct hmb_flat_event *scratch, struct hmb_place *places)
{
	uint64_t count = mark_open(open, base, events, n, places), found = 0;

	qsort(places, count, sizeof(*places), compare_places);
	hmb_events_sort(events, n, scratch);
	for (uint64_t row = 0; found < count; row++) {
		if (!(events[row].event_type_id[3] & OPEN_MARK))
			continue;
		events[row].event_type_id[3] &= (uint8_t)~OPEN_MARK;
		places[found++].slot->ref = base + row * sizeof(*events);
	}
}

uint64_t hmb_events_find_core(const struct hmb_flat_event *events, uint64_t row, uint64_t n,
			      uint32_t word)
{
	while (row < n && memcmp(events[row].core_id, &word, sizeof(word)))
		row++;
	return row;
}

/* The runs as a heap by their next start_cycle, ties by index: runs[order[0]] is the least. */
struct heap {
	struct hmb_run *runs;
	uint64_t *order;
	uint64_t count;
};

static inline int before(const struct heap *heap, uint64_t a, uint64_t b)
{
	uint64_t start_a = start_of(heap->runs[a].next), start_b = start_of(heap->runs[b].next);

	return start_a < start_b || (start_a == start_b && a < b);
}

static void sift(struct heap *heap, uint64_t i)
{
	uint64_t moved = heap->order[i], child;

	while ((child = 2 * i + 1) < heap->count) {
		if (child + 1 < heap->count &&
		    before(heap, heap->order[child + 1], heap->order[child]))
			child++;
		if (!before(heap, heap->order[child], moved))
			break;
		heap->order[i] = heap->order[child];
		i = child;
	}
	heap->order[i] = moved;
}

/* The least of the runs but the first of the heap, or the first itself. */
static uint64_t second(const struct heap *heap)
{
	if (heap->count < 2)
		return heap->order[0];
	if (heap->count > 2 && before(heap, heap->order[2], heap->order[1]))
		return heap->order[2];
	return heap->order[1];
}

/* Runs hardly overlap as a rule: copy from the least one until the next one has its turn. */
static uint64_t copy_least(struct heap *heap, struct hmb_flat_event *out, uint64_t room)
{
	uint64_t least = heap->order[0], rival = second(heap), n = 0;
	struct hmb_run *run = &heap->runs[least];

	while (n < room && run->next < run->end && (rival == least || before(heap, least, rival)))
		out[n++] = *run->next++;
	return n;
}

static uint64_t fill_heap(struct heap *heap, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		if (heap->runs[i].next < heap->runs[i].end)
			heap->order[heap->count++] = i;
		else if (heap->runs[i].more)
			return i;
	}
	for (uint64_t i = heap->count / 2; i-- > 0;)
		sift(heap, i);
	return count;
}

uint64_t hmb_events_merge(struct hmb_run *runs, uint64_t count, uint64_t *order,
			  struct hmb_flat_event *out, uint64_t cap, uint64_t *refill)
{
	struct heap heap = { runs, order, 0 };
	uint64_t n = 0;

	*refill = fill_heap(&heap, count);
	if (*refill != count)
		return 0;
	while (heap.count && n < cap) {
		const struct hmb_run *run = &runs[heap.order[0]];

		n += copy_least(&heap, out + n, cap - n);
		if (run->next == run->end) {
			if (run->more) {
				*refill = heap.order[0];
				break;
			}
			heap.order[0] = heap.order[--heap.count];
		}
		if (heap.count)
			sift(&heap, 0);
	}
	return n;
}
