// SPDX-License-Identifier: Apache-2.0
/* The page by which daemon and collector speak with each other (api/live.h). */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "core.h"
#include "spool.h"

_Static_assert(LIVE_BLOCK + sizeof(struct hmb_live) <= SPOOL_HEADER, "the live page fits");

struct hmb_live *hmb_spool_live(const struct hmb_spool *spool)
{
	return (struct hmb_live *)(spool->map + LIVE_BLOCK);
}

uint32_t hmb_live_layout(void)
{
	return SPOOL_VERSION << 24 ^ (uint32_t)sizeof(struct hmb_live) << 12 ^
	       (uint32_t)sizeof(struct hmb_commit);
}

uint64_t hmb_live_collector_lock(void)
{
	return COLLECTOR_BLOCK;
}

uint64_t hmb_live_writer_lock(void)
{
	return WRITER_BLOCK;
}

/* Not FUTEX_PRIVATE: the page is another process's as well. */
static void futex_wait(const uint32_t *word, uint32_t seen, uint64_t ns)
{
	struct timespec pause = { .tv_sec = (time_t)(ns / 1000000000u),
				  .tv_nsec = (long)(ns % 1000000000u) };

	syscall(SYS_futex, word, FUTEX_WAIT, seen, &pause, NULL, 0);
}

uint32_t hmb_live_wait(const uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
	uint64_t start = monotonic_ns(), waited = 0;
	uint32_t now;

	/* Pairs with the release in hmb_live_set(). */
	while ((now = __atomic_load_n(word, __ATOMIC_ACQUIRE)) == seen && waited < timeout_ns) {
		futex_wait(word, seen, timeout_ns - waited);
		waited = monotonic_ns() - start;
	}
	return now;
}

void hmb_live_set(uint32_t *word, uint32_t value)
{
	/* What the word speaks of is in place. Pairs with the acquire in hmb_live_wait(). */
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
	syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int hmb_live_ask(struct hmb_live *live, uint32_t request, uint32_t argument, uint64_t timeout_ns)
{
	uint64_t start = monotonic_ns(), waited = 0;
	uint32_t number = live->request_number + 1, answered;

	live->request = request;
	live->argument = argument;
	hmb_live_set(&live->request_number, number);
	do {
		answered = __atomic_load_n(&live->answer_number, __ATOMIC_ACQUIRE);
		if (answered == number)
			return live->answer;
		hmb_live_wait(&live->answer_number, answered, timeout_ns - waited);
		waited = monotonic_ns() - start;
	} while (waited < timeout_ns);
	return -ETIMEDOUT;
}
