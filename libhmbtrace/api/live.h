/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two processes tell each other while both run: a page of the spool's header.  Nothing
 * in it is needed after a death; what must survive stands in the commits.  Words that somebody
 * waits for are futexes.  Times are CLOCK_MONOTONIC unless said otherwise.
 */

/* What the daemon may ask of the collector. */
enum hmb_live_request {
	HMB_LIVE_START = 1, /* run, with the options below, until something is to be decided */
	HMB_LIVE_DRAIN, /* end the run once the head of this moment is reached */
	HMB_LIVE_STOP, /* end the run after the pass that is under way */
	HMB_LIVE_REATTACH, /* R1 on the same mapping; answer: enum hmb_field that is wrong, or 0 */
	HMB_LIVE_NEW_EPOCH, /* hmb_collector_new_epoch(argument) */
	HMB_LIVE_FINISH, /* hmb_collector_finish() */
	HMB_LIVE_EXIT, /* end the process; the run, if any, as by HMB_LIVE_STOP */
	HMB_LIVE_HAND_OVER, /* the same, for the process that waits as `next_pid` */
};

enum hmb_live_state {
	HMB_LIVE_NOBODY, /* no collector was ever here */
	HMB_LIVE_RUNNING,
	HMB_LIVE_PAUSED, /* a run ended with `code`; it waits for what the daemon decides */
	HMB_LIVE_GONE, /* ended in order */
};

struct hmb_live {
	uint32_t layout; /* hmb_live_layout() of the collector: another is not to be spoken to */
	uint32_t pid; /* of the collector */
	uint32_t state; /* enum hmb_live_state; a futex */
	int32_t code; /* enum hmb_stop of the run that ended last */
	uint32_t request_number; /* counts requests; a futex of the collector's */
	uint32_t request;
	uint32_t argument;
	uint32_t answer_number; /* of the request that was answered last; a futex of the daemon's */
	int32_t answer;
	uint32_t next_pid; /* of a collector that has mapped everything and waits for its turn */
	uint32_t once; /* these, the daemon's options, are taken over at HMB_LIVE_START */
	uint32_t keep_frozen;
	uint64_t latency_ns;
	uint64_t idle_ns;
	uint64_t linger_ns; /* without a daemon the collector ends after so long; 0: never */
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t heartbeat_ns; /* the collector's, a few times a second */
	uint64_t orphan_since_ns; /* since when there has been no daemon; 0: there is one */
	uint64_t first_ns; /* when the first record was taken */
	uint64_t handed_ns; /* when the last collector stopped for the next one ... */
	uint64_t taken_ns; /* ... and when that began */
	char program[64]; /* version of the collector's program; NUL-terminated */
	struct hmb_collector
		shown; /* its numbers, a few times a second; its pointers mean nothing */
};

struct hmb_live *hmb_spool_live(const struct hmb_spool *spool);
/* What both must agree on to speak with each other: sizes and version, in one word. */
uint32_t hmb_live_layout(void);
/* The file's bytes that two locks stand for (fcntl, F_OFD_SETLK): who collects, who writes. */
uint64_t hmb_live_collector_lock(void);
uint64_t hmb_live_writer_lock(void);
/* Wait while *word is `seen`, at most timeout_ns; back comes what it is then. */
uint32_t hmb_live_wait(const uint32_t *word, uint32_t seen, uint64_t timeout_ns);
/* Store and wake who waits for the word. */
void hmb_live_set(uint32_t *word, uint32_t value);
/* The daemon's side: ask, and wait for the answer; -ETIMEDOUT when none comes. */
int hmb_live_ask(struct hmb_live *live, uint32_t request, uint32_t argument, uint64_t timeout_ns);
