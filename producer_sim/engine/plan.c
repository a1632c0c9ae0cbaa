// SPDX-License-Identifier: Apache-2.0
/* A binary heap of things to come. */
#include "sim_core.h"

static int earlier(const struct sim_planned *a, const struct sim_planned *b)
{
	return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static int grow(struct sim_plan *plan)
{
	uint32_t capacity = plan->capacity ? 2 * plan->capacity : 64;
	struct sim_planned *heap = realloc(plan->heap, capacity * sizeof(*heap));

	if (!heap)
		return -ENOMEM;
	plan->heap = heap;
	plan->capacity = capacity;
	return 0;
}

int sim_plan_add(struct sim_plan *plan, struct sim_planned planned)
{
	uint32_t i = plan->count;

	if (plan->count == plan->capacity && grow(plan))
		return -ENOMEM;
	planned.order = plan->next_order++;
	plan->count++;
	while (i && earlier(&planned, &plan->heap[(i - 1) / 2])) {
		plan->heap[i] = plan->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	plan->heap[i] = planned;
	return 0;
}

struct sim_planned sim_plan_take(struct sim_plan *plan)
{
	struct sim_planned first = plan->heap[0];
	struct sim_planned last = plan->heap[--plan->count];
	uint32_t i = 0;

	for (uint32_t child = 1; child < plan->count; child = 2 * i + 1) {
		if (child + 1 < plan->count && earlier(&plan->heap[child + 1], &plan->heap[child]))
			child++;
		if (!earlier(&plan->heap[child], &last))
			break;
		plan->heap[i] = plan->heap[child];
		i = child;
	}
	plan->heap[i] = last;
	return first;
}

void sim_plan_free(struct sim_plan *plan)
{
	free(plan->heap);
	*plan = (struct sim_plan){ 0 };
}
