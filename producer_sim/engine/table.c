// SPDX-License-Identifier: Apache-2.0
/* Records from a table: weighted events, typed fields, begin and end as pairs. */
#include "sim_core.h"

#define LOTS 4096u /* resolution of weights */

struct sim_table {
	uint16_t lots[LOTS]; /* index of an event, as often as its weight says */
	uint64_t *counters; /* one a field */
};

static uint64_t total_weight(const struct hmb_sim_config *config)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < config->event_count; i++)
		sum += config->events[i].weight;
	return sum;
}

/* Event i gets the lots from its weight's sum to the next; a rare one keeps at least one. */
static void deal_lots(struct sim_table *table, const struct hmb_sim_config *config, uint64_t total)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < config->event_count; i++) {
		uint64_t from = sum * LOTS / total;
		uint64_t to = (sum + config->events[i].weight) * LOTS / total;

		sum += config->events[i].weight;
		if (config->events[i].weight && to == from)
			to = from + (from < LOTS);
		for (uint64_t lot = from; lot < to; lot++)
			table->lots[lot] = (uint16_t)i;
	}
}

int sim_table_begin(struct hmb_sim *sim)
{
	const struct hmb_sim_config *config = &sim->config;
	uint64_t total = total_weight(config);

	if (!total || config->event_count > UINT16_MAX)
		return -EINVAL;
	sim->table = calloc(1, sizeof(*sim->table));
	if (!sim->table)
		return -ENOMEM;
	sim->table->counters = calloc(config->field_count + 1, sizeof(uint64_t));
	if (!sim->table->counters)
		return -ENOMEM;
	deal_lots(sim->table, config, total);
	return 0;
}

void sim_table_end(struct hmb_sim *sim)
{
	if (sim->table)
		free(sim->table->counters);
	free(sim->table);
}

static void put(uint8_t *to, uint32_t size, uint64_t value)
{
	memcpy(to, &value, size < 8 ? size : 8);
}

static void put_float(uint8_t *to, uint32_t size, double value)
{
	float narrow = (float)value;

	memcpy(to, size == 4 ? (void *)&narrow : (void *)&value, size == 4 ? 4 : 8);
}

static void put_text(struct hmb_sim *sim, uint8_t *to, uint32_t size)
{
	uint32_t length = (uint32_t)sim_between(&sim->random, 1, size);

	memset(to, 0, size);
	for (uint32_t i = 0; i < length; i++)
		to[i] = (uint8_t)sim_between(&sim->random, 'a', 'z');
}

static uint64_t skewed(struct hmb_sim *sim, const struct hmb_sim_field *field)
{
	uint64_t u = sim_random(&sim->random) >> 32;

	/* u^4 in 64 bits: a tenth of the values takes more than half of the draws. */
	u = u * u >> 32;
	return sim_scale(u * u, field->min, field->max);
}

static uint64_t count_up(struct hmb_sim *sim, uint32_t index)
{
	const struct hmb_sim_field *field = &sim->config.fields[index];
	uint64_t *counter = &sim->table->counters[index];
	uint64_t value = field->min + *counter;

	*counter = value == field->max ? 0 : *counter + 1;
	return value;
}

/* key and since: of the pair that this record belongs to. */
static void fill_field(struct hmb_sim *sim, uint32_t index, uint64_t key, uint64_t since)
{
	const struct hmb_sim_field *field = &sim->config.fields[index];
	uint8_t *to = sim->next.payload + field->offset;

	switch (field->kind) {
	case HMB_SIM_FIELD_COUNTER:
		put(to, field->size, count_up(sim, index));
		break;
	case HMB_SIM_FIELD_SKEWED:
		put(to, field->size, skewed(sim, field));
		break;
	case HMB_SIM_FIELD_KEY:
		put(to, field->size, key);
		break;
	case HMB_SIM_FIELD_ELAPSED:
		put(to, field->size, sim->clock.now_ns - since);
		break;
	case HMB_SIM_FIELD_FLOAT:
		put_float(to, field->size,
			  (double)field->min + (double)(field->max - field->min) *
						       (double)(sim_random(&sim->random) >> 11) /
						       9007199254740992.0);
		break;
	case HMB_SIM_FIELD_TEXT:
		put_text(sim, to, field->size);
		break;
	default:
		put(to, field->size, sim_between(&sim->random, field->min, field->max));
	}
}

static void emit(struct hmb_sim *sim, const struct hmb_sim_event *event, uint8_t cpu, uint64_t key,
		 uint64_t since)
{
	uint32_t length = event->payload_min;

	if (event->payload_max > event->payload_min)
		length =
			(uint32_t)sim_between(&sim->random, event->payload_min, event->payload_max);
	sim_stage(sim, sim->clock.now_ns, event->opcode, cpu, event->flags, length);
	sim_fill_random(&sim->random, sim->next.payload, length);
	for (uint32_t i = 0; i < event->fields; i++)
		fill_field(sim, event->first_field + i, key, since);
}

/* The value that joins a begin with its end: in turn, so that pairs seldom overlap. */
static uint64_t draw_key(struct hmb_sim *sim, const struct hmb_sim_event *event)
{
	for (uint32_t i = 0; i < event->fields; i++) {
		if (sim->config.fields[event->first_field + i].kind == HMB_SIM_FIELD_KEY)
			return count_up(sim, event->first_field + i);
	}
	return 0;
}

static int plan_end(struct hmb_sim *sim, const struct hmb_sim_event *event, uint8_t cpu,
		    uint64_t key)
{
	uint64_t now = sim->clock.now_ns;
	struct sim_planned end = {
		.time = now + sim_between(&sim->random, event->duration_min, event->duration_max),
		.since = now,
		.key = key,
		.what = (uint32_t)event->end,
		.extra = cpu,
	};

	return sim_plan_add(&sim->plan, end);
}

static int emit_drawn(struct hmb_sim *sim)
{
	uint64_t bits = sim_random(&sim->random);
	const struct hmb_sim_event *event = &sim->config.events[sim->table->lots[bits % LOTS]];
	uint8_t cpu = (uint8_t)((bits >> 32) * event->cpus >> 32);
	uint64_t key = event->end >= 0 ? draw_key(sim, event) : 0;

	emit(sim, event, cpu, key, sim->clock.now_ns);
	return event->end >= 0 ? plan_end(sim, event, cpu, key) : 0;
}

int sim_table_next(struct hmb_sim *sim)
{
	struct sim_plan *plan = &sim->plan;
	uint64_t now = sim_clock_step(sim);
	struct sim_planned end;

	if (!plan->count || plan->heap[0].time > now)
		return emit_drawn(sim);
	end = sim_plan_take(plan);
	emit(sim, &sim->config.events[end.what], (uint8_t)end.extra, end.key, end.since);
	return 0;
}
