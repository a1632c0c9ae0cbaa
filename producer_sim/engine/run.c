// SPDX-License-Identifier: Apache-2.0
/* The loop that writes records at a rate, in slices, without the GIL. */
#include <sys/prctl.h>
#include <time.h>

#include "hmb_producer_port.h"
#include "sim_core.h"

#define BATCH 256u /* records between two looks at the clock */
#define SECOND 1000000000u
#define LONGEST_NAP 20000000u /* 20 ms: how late a stop may be */
#define ROOM_NAP 20000u /* 20 us: a consumer frees room in batches */
#define SHORTEST_NAP 50000u /* 50 us: below, naps cost more than they save */
#define DEBT 4u /* after a stall at most 1/4 s of records comes at once */

static void nap(uint64_t ns)
{
	struct timespec time = { .tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND) };

	nanosleep(&time, NULL);
}

uint32_t hmb_sim_sizeof_config(void)
{
	return sizeof(struct hmb_sim_config);
}

static int begin_source(struct hmb_sim *sim)
{
	switch (sim->config.source) {
	case HMB_SIM_REPLAY:
		return 0;
	case HMB_SIM_FTL:
		return sim_ftl_begin(sim);
	default:
		return sim_table_begin(sim);
	}
}

static void begin_clock(struct hmb_sim *sim)
{
	uint64_t rate = sim->config.rate;

	sim->clock.step_ns = rate ? SECOND / rate : sim->config.gap_ns;
	sim->clock.step_rest = rate ? SECOND % rate : 0;
	sim->clock.even_ns = sim->config.start_ts_ns;
	sim->clock.now_ns = sim->config.start_ts_ns;
}

struct hmb_sim *hmb_sim_new(const struct hmb_sim_config *config)
{
	struct hmb_sim *sim = calloc(1, sizeof(*sim));

	if (!sim)
		return NULL;
	sim->config = *config;
	sim->random = config->seed;
	sim_counts_begin(&sim->epoch);
	sim_counts_begin(&sim->closed);
	sim->fnv_total = sim->epoch.fnv64;
	begin_clock(sim);
	if (begin_source(sim) || sim_log_begin(sim) ||
	    hmb_producer_init(&sim->producer, config->base, config->ring_size, config->start_cursor,
			      config->start_seq)) {
		hmb_sim_free(sim);
		return NULL;
	}
	sim->producer.drops_keep_seq = config->drops_keep_seq;
	return sim;
}

void hmb_sim_free(struct hmb_sim *sim)
{
	sim_table_end(sim);
	sim_ftl_end(sim);
	sim_plan_free(&sim->plan);
	free(sim->log.entries);
	free(sim);
}

void hmb_sim_stop(struct hmb_sim *sim)
{
	__atomic_store_n(&sim->stop, 1, __ATOMIC_RELAXED);
}

static void restart_pace(struct hmb_sim *sim, uint64_t now)
{
	sim->pace = (struct sim_pace){ .origin_ns = now,
				       .origin_produced = sim->produced,
				       .origin_clock_ns = sim->clock.now_ns,
				       .started = 1 };
}

static uint64_t burst(const struct hmb_sim *sim)
{
	return sim->config.burst ? sim->config.burst : 1;
}

/* Records that may be produced by now, since the origin. */
static uint64_t due(const struct hmb_sim *sim, uint64_t now)
{
	unsigned __int128 scaled =
		(unsigned __int128)(now - sim->pace.origin_ns) * sim->config.rate;

	return ((uint64_t)(scaled / SECOND) / burst(sim) + 1) * burst(sim);
}

/* One record if its time has come, by the firmware clock. */
static uint64_t allowance_by_clock(struct hmb_sim *sim, uint64_t now, uint64_t *next_ns)
{
	uint64_t due;

	if (!sim->pace.started)
		restart_pace(sim, now);
	due = sim->pace.origin_ns + (sim->clock.now_ns - sim->pace.origin_clock_ns);
	if ((int64_t)(due - now) > 0) {
		*next_ns = due;
		return 0;
	}
	if (now - due > SECOND / DEBT)
		restart_pace(sim, now);
	return 1;
}

/* How many records now; 0: none before *next_ns. */
static uint64_t allowance(struct hmb_sim *sim, uint64_t now, uint64_t *next_ns)
{
	uint64_t done, owed;

	if (sim->config.by_clock)
		return allowance_by_clock(sim, now, next_ns);
	if (!sim->config.rate)
		return UINT64_MAX;
	if (!sim->pace.started)
		restart_pace(sim, now);
	done = sim->produced - sim->pace.origin_produced;
	owed = due(sim, now);
	if (owed <= done) {
		*next_ns = sim->pace.origin_ns +
			   (uint64_t)((unsigned __int128)done * SECOND / sim->config.rate);
		return 0;
	}
	if (owed - done > sim->config.rate / DEBT + 2 * burst(sim))
		restart_pace(sim, now);
	return owed - done;
}

static int stopped(const struct hmb_sim *sim)
{
	return __atomic_load_n(&sim->stop, __ATOMIC_RELAXED);
}

static void wait_for_room(struct hmb_sim *sim)
{
	uint64_t start = sim_monotonic_ns();

	nap(ROOM_NAP);
	sim->blocked_ns += sim_monotonic_ns() - start;
}

static void wait_for_pace(uint64_t now, uint64_t next, uint64_t deadline)
{
	uint64_t until = next < deadline ? next : deadline;
	uint64_t left = until > now ? until - now : 0;

	if (left < SHORTEST_NAP)
		left = SHORTEST_NAP;
	nap(left < LONGEST_NAP ? left : LONGEST_NAP);
}

static int stage_next(struct hmb_sim *sim)
{
	if (!sim->have_next && sim_next(sim))
		return -ENODATA;
	sim->have_next = 1;
	return 0;
}

/* One record: 1, or 0 when it has to wait, or -ENODATA. */
static int step(struct hmb_sim *sim)
{
	if (stage_next(sim))
		return -ENODATA;
	if (sim_publish_next(sim) == SIM_BLOCKED)
		return 0;
	sim->have_next = 0;
	sim->produced++;
	return 1;
}

static int batch(struct hmb_sim *sim, uint64_t count)
{
	int went = 1;

	for (uint64_t i = 0; i < count && went > 0; i++)
		went = step(sim);
	return went;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* A batch, or a wait for pace or room: 0, or -ENODATA. */
static int go_on(struct hmb_sim *sim, uint64_t until, uint64_t now, uint64_t deadline)
{
	uint64_t next = deadline;
	uint64_t allowed;
	int went = 1;

	if (sim->config.by_clock && stage_next(sim))
		return -ENODATA;
	allowed = allowance(sim, now, &next);
	if (!allowed)
		wait_for_pace(now, next, deadline);
	else
		went = batch(sim, least(least(allowed, BATCH), until - sim->produced));
	if (!went)
		wait_for_room(sim);
	return went < 0 ? went : 0;
}

int hmb_sim_run(struct hmb_sim *sim, uint64_t until, uint64_t slice_ns)
{
	uint64_t now = sim_monotonic_ns();
	uint64_t deadline = now + slice_ns;

	prctl(PR_SET_TIMERSLACK, 1000ul);
	while (sim->produced < until) {
		if (stopped(sim))
			return HMB_SIM_STOPPED;
		if (now >= deadline)
			return HMB_SIM_SLICE;
		if (go_on(sim, until, now, deadline))
			return HMB_SIM_END;
		now = sim_monotonic_ns();
	}
	return HMB_SIM_REACHED;
}

void hmb_sim_stats(struct hmb_sim *sim, struct hmb_sim_stats *stats)
{
	struct hmb_producer *p = &sim->producer;

	*stats = (struct hmb_sim_stats){
		.produced = sim->produced,
		.published = sim->published,
		.drops = p->dropped,
		.blocked_ns = sim->blocked_ns,
		.head = p->head,
		.tail = hmb_port_load_acquire64(&p->hdr->tail),
		.now_ns = sim->clock.now_ns + (uint64_t)sim->clock.shift_ns,
		.ring_flags = p->flags,
		.blocked = sim->blocked,
		.seq = p->seq,
		.epoch = sim->epoch_number,
	};
}
