// SPDX-License-Identifier: Apache-2.0
/* Where records come from: what all sources share, and the replay of a dump. */
#include "sim_core.h"

void sim_fill_random(uint64_t *state, uint8_t *to, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i += 8) {
		uint64_t word = sim_random(state);

		memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

void sim_stage(struct hmb_sim *sim, uint64_t time_ns, uint16_t opcode, uint8_t cpu, uint8_t flags,
	       uint32_t payload_len)
{
	uint32_t need = sim_record_size(payload_len);

	if (sim->config.real_clock)
		time_ns = sim_monotonic_ns();
	sim->next.hdr = (struct hmb_record_hdr){ .magic = HMB_RECORD_MAGIC,
						 .ts_ns = time_ns + (uint64_t)sim->clock.shift_ns,
						 .opcode = opcode,
						 .cpu = cpu,
						 .flags = flags,
						 .payload_len = (uint16_t)payload_len };
	if (payload_len & 7)
		memset((uint8_t *)&sim->next + need - 8, 0, 8);
}

/* rate records a second without drift: whole nanoseconds, and their rest carried on. */
static void step_evenly(struct sim_clock *clock, uint64_t rate)
{
	clock->even_ns += clock->step_ns;
	clock->rest += clock->step_rest;
	if (rate && clock->rest >= rate) {
		clock->rest -= rate;
		clock->even_ns++;
	}
}

uint64_t sim_clock_step(struct hmb_sim *sim)
{
	struct sim_clock *clock = &sim->clock;
	uint64_t gap = sim->config.gap_ns < clock->step_ns ? sim->config.gap_ns : clock->step_ns;

	if (sim->config.burst <= 1 || clock->in_burst % sim->config.burst == 0)
		clock->now_ns = clock->even_ns;
	else
		clock->now_ns += gap;
	clock->in_burst++;
	step_evenly(clock, sim->config.rate);
	return clock->now_ns;
}

/* The first record at or after replay_at that is no wrap marker; Python checked the dump. */
static const struct hmb_record_hdr *replay_record(struct hmb_sim *sim)
{
	const struct hmb_sim_config *config = &sim->config;

	while (config->replay_size - sim->replay_at >= sizeof(struct hmb_record_hdr)) {
		const void *at = config->replay + sim->replay_at;
		const struct hmb_record_hdr *hdr = at;
		uint32_t size = sim_record_size(hdr->payload_len);

		if (hdr->magic != HMB_RECORD_MAGIC || size > SIM_MAX_RECORD ||
		    size > config->replay_size - sim->replay_at)
			return NULL;
		sim->replay_at += size;
		if (!(hdr->flags & HMB_REC_FLAG_WRAP_MARKER))
			return hdr;
	}
	return NULL;
}

/* The dump's own seq: its gaps were drops, and look like drops again. */
static void replay_seq(struct hmb_sim *sim, uint32_t seq)
{
	uint32_t ahead = seq - sim->producer.seq;

	if (sim->config.renumber)
		return;
	sim->producer.seq = seq;
	if (!sim->have_last || !ahead)
		return;
	if (ahead < 0x7fffffffu)
		sim->pending_drops += ahead;
	else if (ahead == 0xffffffffu)
		sim->epoch.duplicates++;
	else
		sim->epoch.sequence_resets++;
}

int sim_replay_next(struct hmb_sim *sim)
{
	const struct hmb_record_hdr *hdr = replay_record(sim);

	if (!hdr)
		return -ENODATA;
	sim->clock.now_ns = hdr->ts_ns;
	sim_stage(sim, hdr->ts_ns, hdr->opcode, hdr->cpu, hdr->flags, hdr->payload_len);
	memcpy(sim->next.payload, hdr + 1, hdr->payload_len);
	replay_seq(sim, hdr->seq);
	return 0;
}

int sim_next(struct hmb_sim *sim)
{
	switch (sim->config.source) {
	case HMB_SIM_REPLAY:
		return sim_replay_next(sim);
	case HMB_SIM_FTL:
		return sim_ftl_next(sim);
	default:
		return sim_table_next(sim);
	}
}
