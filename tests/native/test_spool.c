// SPDX-License-Identifier: Apache-2.0
/* The spool: what maps and what is refused, and commits that are whole while the other side goes on. */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { DATA = 1 << 16, JOURNAL = 1 << 16, COMMITS = 20000 };

static int new_file(uint64_t size)
{
	int fd = memfd_create("spool", 0);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	return fd;
}

static int map_again(struct hmb_spool *spool, int fd, uint64_t size)
{
	return hmb_spool_map(spool, fd, size, 0, 0, NULL, 0);
}

/* A new spool, mapped; its descriptor. */
static int open_fresh(struct hmb_spool *spool)
{
	uint64_t size = hmb_spool_file_size(DATA, JOURNAL);
	int fd = new_file(size);

	CHECK_EQUAL(hmb_spool_map(spool, fd, size, DATA, JOURNAL, "x", 1), 0);
	return fd;
}

static void sizes_are_checked(void)
{
	uint64_t size = hmb_spool_file_size(DATA, JOURNAL);
	int fd = new_file(size);
	struct hmb_spool spool;

	CHECK_EQUAL(hmb_spool_map(&spool, fd, size - 1, DATA, JOURNAL, "x", 1), (uint64_t)-EINVAL);
	CHECK_EQUAL(hmb_spool_map(&spool, fd, size, DATA + 8, JOURNAL, "x", 1), (uint64_t)-EINVAL);
	CHECK_EQUAL(hmb_spool_map(&spool, fd, size, 0, JOURNAL, "x", 1), (uint64_t)-EINVAL);
	CHECK_EQUAL(hmb_spool_map(&spool, fd, size, ~0ull - 4095, JOURNAL, "x", 1),
		    (uint64_t)-EINVAL);
	CHECK_EQUAL(map_again(&spool, fd, size), (uint64_t)-ENODATA);
	close(fd);
}

/* Overwrite bytes of a good spool's file and see it refused. */
static void refuse_with(uint64_t at, uint64_t word, int err)
{
	uint64_t size = hmb_spool_file_size(DATA, JOURNAL);
	int fd = new_file(size);
	struct hmb_spool spool;

	CHECK_EQUAL(hmb_spool_map(&spool, fd, size, DATA, JOURNAL, "a ring", 1), 0);
	CHECK(strcmp(hmb_spool_identity(&spool), "a ring") == 0);
	hmb_spool_unmap(&spool);
	CHECK_EQUAL(map_again(&spool, fd, size), 0);
	CHECK_EQUAL(spool.data_size, DATA);
	CHECK_EQUAL(spool.journal_size, JOURNAL);
	hmb_spool_unmap(&spool);
	CHECK(pwrite(fd, &word, sizeof(word), (off_t)at) == sizeof(word));
	CHECK_EQUAL(map_again(&spool, fd, size), (uint64_t)err);
	close(fd);
}

/* An identity without its end would be read beyond the header's field. */
static void lies_are_refused(void)
{
	refuse_with(0, 0, -ENODATA); /* magic: killed before it was stored */
	refuse_with(0, 1, -EBADMSG);
	refuse_with(8, 1, -EPROTONOSUPPORT); /* version */
	refuse_with(24, DATA * 2, -EBADMSG); /* data_size beyond the file */
	refuse_with(24, DATA / 2, -EBADMSG); /* ... short of it */
	refuse_with(24, DATA + 8, -EBADMSG); /* ... not whole pages */
	refuse_with(32, ~0ull, -EBADMSG); /* journal_size */
	refuse_with(40 + 248, ~0ull, -EBADMSG); /* the identity's last bytes */
}

/* A commit that claims more than the spool can hold would send the collector out of it. */
static void impossible_commits_are_refused(void)
{
	struct hmb_commit commit = { .data_head = DATA + 8 };
	uint64_t size = hmb_spool_file_size(DATA, JOURNAL);
	int fd = new_file(size);
	struct hmb_spool spool;

	CHECK_EQUAL(hmb_spool_map(&spool, fd, size, DATA, JOURNAL, "x", 1), 0);
	hmb_spool_commit(&spool, &commit);
	hmb_spool_unmap(&spool);
	CHECK_EQUAL(map_again(&spool, fd, size), (uint64_t)-EBADMSG);
	close(fd);
}

enum { COLLECTOR_BLOCK = 4096, WRITER_BLOCK = 8192, SLOTS = 64 };

static int with_bit_flipped(int fd, uint64_t at, int bit)
{
	struct hmb_spool spool;
	uint64_t word, changed;
	int err;

	CHECK(pread(fd, &word, sizeof(word), (off_t)at) == sizeof(word));
	changed = word ^ 1ull << bit;
	CHECK(pwrite(fd, &changed, sizeof(changed), (off_t)at) == sizeof(changed));
	err = map_again(&spool, fd, hmb_spool_file_size(DATA, JOURNAL));
	if (!err) {
		CHECK_EQUAL(hmb_spool_data_head(&spool), 192);
		CHECK_EQUAL(hmb_spool_data_tail(&spool), 16);
		hmb_spool_unmap(&spool);
	}
	CHECK(pwrite(fd, &word, sizeof(word), (off_t)at) == sizeof(word));
	return err;
}

/* One bit of the generation, the current slot and its check, and of the other slot. */
static void flip_slots(int fd, uint64_t block, uint64_t slot_size, int current)
{
	uint64_t slot = block + SLOTS + (uint64_t)current * slot_size,
		 other = block + SLOTS + (uint64_t)!current * slot_size;

	for (int bit = 0; bit < 64; bit++) {
		CHECK_EQUAL(with_bit_flipped(fd, block, bit), (uint64_t)-EBADMSG);
		CHECK_EQUAL(with_bit_flipped(fd, block + 24 + 8 * (uint64_t)current, bit),
			    (uint64_t)-EBADMSG);
	}
	for (uint64_t at = 0; at < slot_size; at += 8) {
		CHECK_EQUAL(with_bit_flipped(fd, slot + at, (int)(at / 8 * 11 % 64)),
			    (uint64_t)-EBADMSG);
		CHECK_EQUAL(with_bit_flipped(fd, other + at, 3), 0);
	}
}

/* The other slot is older: to take it instead would lose or repeat records without a word. */
static void damaged_commits_are_refused(void)
{
	struct hmb_writer_commit written = { .name = "a segment" };
	struct hmb_commit commit = { 0 };
	struct hmb_spool spool;
	int fd = open_fresh(&spool);

	for (uint64_t n = 1; n <= 3; n++) {
		commit.data_head = 64 * n;
		hmb_spool_commit(&spool, &commit);
	}
	for (uint64_t n = 1; n <= 2; n++) {
		written.data_tail = 8 * n;
		hmb_spool_commit_writer(&spool, &written);
	}
	hmb_spool_unmap(&spool);
	flip_slots(fd, COLLECTOR_BLOCK, sizeof(commit), 1);
	flip_slots(fd, WRITER_BLOCK, sizeof(written), 0);
	close(fd);
}

/* Both rings are mapped twice: a batch across the end is one piece. */
static void batches_are_contiguous(void)
{
	uint8_t batch[64], back[64];
	struct hmb_spool spool;
	int fd = open_fresh(&spool);

	for (int i = 0; i < 64; i++)
		batch[i] = (uint8_t)i;
	memcpy(spool.data + DATA - 24, batch, sizeof(batch));
	memcpy(spool.journal + JOURNAL - 24, batch, sizeof(batch));
	hmb_spool_copy(&spool, back, 5ull * DATA - 24, sizeof(back));
	CHECK(memcmp(batch, back, sizeof(batch)) == 0);
	CHECK(memcmp(spool.data, batch + 24, 40) == 0);
	CHECK(memcmp(spool.journal, batch + 24, 40) == 0);
	hmb_spool_unmap(&spool);
	close(fd);
}

/* Any alignment, any length, across the end, and nothing beside it. */
static void streaming_copies_what_copying_does(void)
{
	uint8_t streamed[512], copied[512];
	struct hmb_spool spool;
	int fd = open_fresh(&spool);

	for (uint64_t i = 0; i < DATA; i++)
		spool.data[i] = (uint8_t)(i * 31 + i / 256);
	for (uint64_t n = 0; n < 300; n += 1 + n / 7) {
		for (uint64_t shift = 0; shift < 72; shift++) {
			memset(streamed, 0xA5, sizeof(streamed));
			memset(copied, 0xA5, sizeof(copied));
			hmb_spool_stream(&spool, streamed + shift, 3 * DATA - 150 + shift, n);
			hmb_spool_copy(&spool, copied + shift, 3 * DATA - 150 + shift, n);
			CHECK(memcmp(streamed, copied, sizeof(copied)) == 0);
		}
	}
	hmb_spool_unmap(&spool);
	close(fd);
}

/* ---- two sides at once ---- */

static struct hmb_spool shared;
static uint32_t stop;

static void fill_words(void *to, uint64_t bytes, uint64_t word)
{
	for (uint64_t i = 0; i < bytes / 8; i++)
		((uint64_t *)to)[i] = word;
}

static void check_words(const void *from, uint64_t bytes, uint64_t word)
{
	for (uint64_t i = 0; i < bytes / 8; i++)
		CHECK_EQUAL(((const uint64_t *)from)[i], word);
}

static void *commit_all(void *unused)
{
	static struct hmb_commit commit;

	for (uint64_t n = 1; n <= COMMITS; n++) {
		fill_words(&commit, sizeof(commit), n);
		hmb_spool_commit(&shared, &commit);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	return unused;
}

static void *commit_all_of_writer(void *unused)
{
	static struct hmb_writer_commit commit;

	for (uint64_t n = 1; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); n++) {
		fill_words(&commit, sizeof(commit), n);
		hmb_spool_commit_writer(&shared, &commit);
	}
	return unused;
}

static void *read_writer_commits(void *unused)
{
	static struct hmb_writer_commit seen;
	uint64_t last = 0;

	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		hmb_spool_read_writer(&shared, &seen);
		check_words(&seen, sizeof(seen), seen.data_tail);
		CHECK(seen.data_tail >= last);
		CHECK(hmb_spool_data_tail(&shared) + 1 >= seen.data_tail);
		last = seen.data_tail;
	}
	return unused;
}

static void read_commits(void)
{
	static struct hmb_commit seen;
	uint64_t last = 0;

	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		uint64_t head = hmb_spool_data_head(&shared);

		hmb_spool_read_commit(&shared, &seen);
		check_words(&seen, sizeof(seen), seen.data_head);
		CHECK(seen.data_head >= last && seen.data_head >= head);
		last = seen.data_head;
	}
}

static void commits_are_whole(void)
{
	uint64_t size = hmb_spool_file_size(DATA, JOURNAL);
	int fd = new_file(size);
	pthread_t thread[3];

	CHECK_EQUAL(hmb_spool_map(&shared, fd, size, DATA, JOURNAL, "x", 1), 0);
	pthread_create(&thread[0], NULL, commit_all, NULL);
	pthread_create(&thread[1], NULL, commit_all_of_writer, NULL);
	pthread_create(&thread[2], NULL, read_writer_commits, NULL);
	read_commits();
	for (int i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	hmb_spool_unmap(&shared);
	close(fd);
}

/* The writer's wait ends by data, by a crowded journal, by a nudge and by time. */
static void wait_ends(void)
{
	struct hmb_commit commit = { .data_head = 100, .journal_head = 8 };
	uint64_t long_ns = 3600000000000ull;
	uint32_t wake = 0;
	struct hmb_spool spool;
	int fd = open_fresh(&spool);

	hmb_spool_commit(&spool, &commit);
	CHECK_EQUAL(hmb_spool_wait(&spool, 40, 60, 8, long_ns, &wake), 60);
	CHECK_EQUAL(hmb_spool_wait(&spool, 40, 61, 8, 1000000, &wake), 60);
	wake = 1;
	CHECK_EQUAL(hmb_spool_wait(&spool, 100, 1, 8, long_ns, &wake), 0);
	wake = 0;
	commit.journal_head = 8 + JOURNAL / 4;
	hmb_spool_commit(&spool, &commit);
	CHECK_EQUAL(hmb_spool_wait(&spool, 100, 1, 8, long_ns, &wake), 0);
	hmb_spool_unmap(&spool);
	close(fd);
}

int main(void)
{
	sizes_are_checked();
	lies_are_refused();
	impossible_commits_are_refused();
	damaged_commits_are_refused();
	batches_are_contiguous();
	streaming_copies_what_copying_does();
	commits_are_whole();
	wait_ends();
	return 0;
}
