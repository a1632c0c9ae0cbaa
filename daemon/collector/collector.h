/* SPDX-License-Identifier: Apache-2.0 */
/* hmb-trace-collector: the process that must never stop (docs/durability.md, "Two processes"). */
#ifndef COLLECTOR_H
#define COLLECTOR_H

#include <stdint.h>

#include "core.h"

/* Exit codes, as sysexits.h and the daemon have them. */
enum exit_code {
	EXIT_USAGE_ERROR = 2,
	EXIT_DATA = 65,
	EXIT_NO_INPUT = 66,
	EXIT_BUSY = 69,
	EXIT_CREATE = 73,
	EXIT_IO = 74,
	EXIT_LATER = 75, /* a leftover that only the daemon can finish */
	EXIT_ABI = 76,
	EXIT_DENIED = 77,
};

struct settings {
	const char *device;
	const char *spool_dir;
	const char
		*identity; /* of the ring, where the daemon says it; else from device and inode */
	const char *spool_name;
	uint64_t spool_size;
	uint64_t latency_ns;
	uint64_t idle_ns; /* 0: from the peak rate */
	uint64_t peak_rate; /* bytes a second */
	uint64_t linger_ns;
	uint64_t index_bytes;
	uint64_t batch_bytes;
	int ring_fd; /* inherited and locked, or -1 */
	uint32_t keep_unknown_flags;
	uint32_t stop_on_corrupt;
	uint32_t once;
	uint32_t paused; /* wait for HMB_LIVE_START */
	uint32_t resume; /* the daemon has judged the leftover: go on from its last commit */
	uint32_t take_over; /* the one that collects now is asked to make room */
};

/* An open ring, and what it takes to let it go. */
struct source {
	struct hmb_ring ring;
	int fd;
	int is_device;
	char identity[256];
};

struct place {
	struct hmb_spool spool;
	int fd;
	uint64_t file_size;
	uint64_t journal_size;
	int fresh;
};

/* One line on stderr, then the end. */
__attribute__((noreturn, format(printf, 2, 3))) void fail(int code, const char *format, ...);

/* ---- main.c ---- */

/* Wait until the collector that runs has stopped at a commit, and go on from there. */
void take_over(struct hmb_collector *c, struct source *source, const struct place *place);

/* ---- ring_source.c ---- */

/* Open, map and check (R1). */
void source_open(struct source *source, const struct settings *settings);
/* Become its consumer, and check once more. */
void source_claim(struct source *source, const struct settings *settings);
/* Take the lock of a ring that another process consumes until now; 0, or -EWOULDBLOCK. */
int source_lock(struct source *source);
void source_unlock(struct source *source);
/* The path that `shm:/NAME` stands for. */
const char *source_path(const char *device, char *buffer, uint64_t size);

/* ---- spool_place.c ---- */

/* Open the leftover of this ring, or make a fresh spool of which a first part is reserved. */
void place_open(struct place *place, const struct settings *settings, const struct source *source);
/* Take the collector's lock: 0 or -EWOULDBLOCK. */
int place_lock(const struct place *place);
void place_unlock(const struct place *place);
/* Whether a daemon holds the writer's side. */
int place_has_writer(const struct place *place);
/* Whether somebody has deleted it: no daemon will ever find what it holds. */
int place_is_lost(const struct place *place);
/* Reserve what is missing and touch all of it, piece by piece, until *stop. */
void place_reserve(struct place *place, struct hmb_spool *collectors, const uint32_t *stop);

/* ---- serve.c ---- */

/* Collect until told to end; the exit code. */
int serve(struct hmb_collector *c, struct place *place, struct source *source,
	  const struct settings *settings);

/* ---- sandbox.c ---- */

/* From here on only what collecting needs: no file is opened, no program started. */
void sandbox_enter(void);
/* Ask for a place before others, as far as we may. */
void sandbox_prefer(void);
/* Ask for what is mapped by now not to be paged out. */
void sandbox_keep_memory(void);

#endif
