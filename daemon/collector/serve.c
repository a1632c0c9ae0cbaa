// SPDX-License-Identifier: Apache-2.0
/*
 * Two threads: one collects, this one listens to the daemon (api/live.h), shows the numbers, and
 * decides alone where no daemon is there to decide.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "collector.h"

#define TICK_NS 50000000u
#define ALONE_TICK_NS 2000000u /* while a ring is being re-initialised and nobody else looks */
#define STALLS_ENOUGH 100u /* about 20 ms in which nobody makes room */
#define DRAIN 1u
#define NOW 2u

struct server {
	struct hmb_collector *c;
	struct place *place;
	struct source *source;
	struct hmb_live *live;
	uint64_t linger_ns;
	pthread_t collecting;
	pthread_t reserving;
	uint32_t go; /* counts runs asked for; a futex */
	uint32_t seen; /* number of the last request */
	uint32_t end; /* no further run */
	uint32_t begun; /* threads that have made the system calls of their beginning; a futex */
	uint32_t stop_reserving;
	int reserved; /* that thread has ended */
	int leaving;
	uint64_t stalls; /* when it began to leave: a full spool takes nothing more */
	int gone; /* another collector has the page */
};

static volatile sig_atomic_t signalled;

static uint32_t state_of(const struct server *s)
{
	return __atomic_load_n(&s->live->state, __ATOMIC_ACQUIRE);
}

static int running(const struct server *s)
{
	return state_of(s) == HMB_LIVE_RUNNING;
}

/* ---- the thread that collects ---- */

static void say_begun(struct server *s, const char *name)
{
	pthread_setname_np(pthread_self(), name);
	hmb_live_set(&s->begun, __atomic_add_fetch(&s->begun, 1, __ATOMIC_ACQ_REL));
}

static void *collect(void *argument)
{
	struct server *s = argument;
	uint32_t done = 0;

	say_begun(s, "hmb-collector");
	for (;;) {
		uint32_t asked = hmb_live_wait(&s->go, done, UINT32_MAX);

		if (__atomic_load_n(&s->end, __ATOMIC_ACQUIRE))
			return NULL;
		if (asked == done)
			continue;
		done = asked;
		s->live->taken_ns = monotonic_ns();
		s->live->code = hmb_collector_run(s->c);
		s->live->handed_ns = monotonic_ns();
		s->live->shown = *s->c;
		hmb_live_set(&s->live->state, HMB_LIVE_PAUSED);
	}
}

static void *reserve(void *argument)
{
	struct server *s = argument;

	say_begun(s, "hmb-reserve");
	place_reserve(s->place, &s->c->spool, &s->stop_reserving);
	return NULL;
}

/* ---- what may be asked ---- */

static int start(struct server *s)
{
	struct hmb_live *live = s->live;

	if (running(s))
		return -EBUSY;
	s->c->once = live->once;
	s->c->keep_frozen = live->keep_frozen;
	if (live->latency_ns)
		s->c->latency_ns = live->latency_ns;
	if (live->idle_ns)
		s->c->idle_ns = live->idle_ns;
	s->c->stop = 0;
	live->shown = *s->c;
	hmb_live_set(&live->state, HMB_LIVE_RUNNING);
	hmb_live_set(&s->go, s->go + 1);
	return 0;
}

static int stop(struct server *s, uint32_t how)
{
	if (s->c->stop < how)
		__atomic_store_n(&s->c->stop, how, __ATOMIC_RELAXED);
	return 0;
}

/* R1 on the mapping that there is; tail goes on by the same way. */
static int reattach(struct server *s)
{
	struct hmb_ring before = s->c->ring;
	struct hmb_refusal refusal;

	if (hmb_ring_attach(&s->c->ring, before.base, before.region_size, &refusal)) {
		s->c->ring = before;
		return (int)refusal.field;
	}
	s->c->ring.advance = before.advance;
	s->c->ring.fd = before.fd;
	s->c->ring.can_poll = before.can_poll;
	return 0;
}

/* End in order: what the ring holds now is taken, as far as the spool has room. */
static void leave(struct server *s, uint32_t how)
{
	s->leaving = 1;
	s->stalls = s->c->stalls;
	stop(s, how);
}

static void await_pause(const struct server *s)
{
	while (running(s))
		hmb_live_wait(&s->live->state, HMB_LIVE_RUNNING, TICK_NS);
}

/* Stop at a commit, let go of the ring, and leave the page to the next one. */
static int hand_over(struct server *s)
{
	if (!s->live->next_pid)
		return -ESRCH;
	stop(s, DRAIN);
	await_pause(s);
	source_unlock(s->source);
	place_unlock(s->place);
	s->leaving = s->gone = 1;
	return 0;
}

static int answer_to(struct server *s, uint32_t request, uint32_t argument)
{
	switch (request) {
	case HMB_LIVE_START:
		return start(s);
	case HMB_LIVE_DRAIN:
		return stop(s, DRAIN);
	case HMB_LIVE_STOP:
		return stop(s, NOW);
	case HMB_LIVE_EXIT:
		leave(s, NOW);
		return 0;
	case HMB_LIVE_HAND_OVER:
		return hand_over(s);
	default:
		break;
	}
	if (running(s))
		return -EBUSY;
	switch (request) {
	case HMB_LIVE_REATTACH:
		return reattach(s);
	case HMB_LIVE_NEW_EPOCH:
		return hmb_collector_new_epoch(s->c, (int)argument);
	case HMB_LIVE_FINISH:
		return hmb_collector_finish(s->c);
	default:
		return -ENOSYS;
	}
}

static void answer(struct server *s)
{
	struct hmb_live *live = s->live;

	s->seen = __atomic_load_n(&live->request_number, __ATOMIC_ACQUIRE);
	live->answer = answer_to(s, live->request, live->argument);
	if (s->gone) {
		/* From here on the page is the successor's, but for the answer that is due. */
		hmb_live_set(&live->state, HMB_LIVE_GONE);
		hmb_live_set(&live->answer_number, s->seen);
		return;
	}
	live->shown = *s->c;
	hmb_live_set(&live->answer_number, s->seen);
}

/* ---- without a daemon ---- */

static void go_on(struct server *s, int give_up)
{
	if (!give_up && reattach(s))
		return; /* not initialised yet: look again at the next tick */
	if (hmb_collector_new_epoch(s->c, give_up) == 0)
		start(s);
}

/* The answers that the daemon would give; what needs its files waits for the next one. */
static void decide_alone(struct server *s)
{
	switch (s->live->code) {
	case 0: /* started, and the daemon died before it said go */
	case HMB_STOP_ASKED:
		start(s);
		break;
	case HMB_STOP_FROZEN: /* at once again while it is; the next daemon hears of it that way */
		s->live->keep_frozen = 0;
		start(s);
		break;
	case HMB_STOP_REINIT:
		go_on(s, 0);
		break;
	case HMB_STOP_INVALID:
		go_on(s, 1);
		break;
	default: /* drained, damaged, gone: nothing more to collect; the spool keeps it */
		s->leaving = 1;
		break;
	}
}

static void look_after_daemon(struct server *s)
{
	struct hmb_live *live = s->live;
	uint64_t now = monotonic_ns();

	if (place_has_writer(s->place)) {
		live->orphan_since_ns = 0;
		return;
	}
	if (!live->orphan_since_ns)
		live->orphan_since_ns = now;
	if (place_is_lost(s->place))
		leave(s, NOW);
	else if (s->linger_ns && now - live->orphan_since_ns >= s->linger_ns) {
		leave(s, DRAIN);
	} else if (!running(s) && !s->leaving) {
		decide_alone(s);
	}
}

/* ---- life ---- */

static void on_signal(int number)
{
	(void)number;
	signalled = 1;
}

/* A ring whose file was cut short under us: what was committed stands, nothing else can be said. */
static struct hmb_live *page_of_process;

static void on_bus_error(int number)
{
	(void)number;
	page_of_process->code = HMB_STOP_HANGUP;
	hmb_live_set(&page_of_process->state, HMB_LIVE_GONE);
	_exit(EXIT_IO);
}

static void catch_signals(struct server *s)
{
	struct sigaction end = { .sa_handler = on_signal }, bus = { .sa_handler = on_bus_error };

	page_of_process = s->live;
	sigaction(SIGTERM, &end, NULL);
	sigaction(SIGINT, &end, NULL);
	sigaction(SIGBUS, &bus, NULL);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
}

static uint64_t tick_of(const struct server *s)
{
	return s->live->orphan_since_ns && !running(s) ? ALONE_TICK_NS : TICK_NS;
}

static void turn(struct server *s)
{
	struct hmb_live *live = s->live;

	if (hmb_live_wait(&live->request_number, s->seen, tick_of(s)) != s->seen)
		answer(s);
	if (s->gone)
		return;
	live->shown = *s->c;
	live->heartbeat_ns = monotonic_ns();
	if (signalled && !s->leaving)
		leave(s, DRAIN);
	if (s->leaving && s->c->stalls > s->stalls + STALLS_ENOUGH)
		stop(s, NOW);
	look_after_daemon(s);
}

static int start_threads(struct server *s)
{
	int err = pthread_create(&s->collecting, NULL, collect, s);

	if (!err)
		err = pthread_create(&s->reserving, NULL, reserve, s);
	for (uint32_t begun = 0; !err && begun < 2;)
		begun = hmb_live_wait(&s->begun, begun, TICK_NS);
	return -err;
}

static void end_threads(struct server *s)
{
	__atomic_store_n(&s->stop_reserving, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&s->end, 1, __ATOMIC_RELEASE);
	hmb_live_set(&s->go, s->go + 1);
	pthread_join(s->collecting, NULL);
	if (!s->reserved)
		pthread_join(s->reserving, NULL);
}

static void introduce(struct server *s, const struct settings *settings)
{
	struct hmb_live *live = s->live;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	live->layout = hmb_live_layout();
	live->pid = (uint32_t)getpid();
	live->next_pid = 0;
	live->code = 0;
	live->once = settings->once;
	live->keep_frozen = 0;
	live->latency_ns = live->idle_ns = 0;
	live->linger_ns = settings->linger_ns;
	live->orphan_since_ns = 0;
	live->started_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	live->heartbeat_ns = monotonic_ns();
	memset(live->program, 0, sizeof(live->program));
	strncpy(live->program, HMB_TRACE_VERSION, sizeof(live->program) - 1);
	live->shown = *s->c;
	s->seen = __atomic_load_n(&live->request_number, __ATOMIC_ACQUIRE);
	hmb_live_set(&live->state, HMB_LIVE_PAUSED);
}

int serve(struct hmb_collector *c, struct place *place, struct source *source,
	  const struct settings *settings)
{
	struct server s = { .c = c,
			    .place = place,
			    .source = source,
			    .live = hmb_spool_live(&place->spool),
			    .linger_ns = settings->linger_ns };

	catch_signals(&s);
	if (start_threads(&s))
		fail(EXIT_IO, "cannot start a thread; raise the limit on tasks (ulimit -u)");
	if (settings->take_over) {
		/* All of the spool is touched before anybody stops for us. */
		pthread_join(s.reserving, NULL);
		s.reserved = 1;
		take_over(c, source, place);
	}
	introduce(&s, settings);
	if (!settings->paused)
		start(&s);
	sandbox_keep_memory();
	sandbox_enter();
	while (!s.leaving || (!s.gone && running(&s)))
		turn(&s);
	end_threads(&s);
	if (!s.gone)
		hmb_live_set(&s.live->state, HMB_LIVE_GONE);
	return 0;
}
