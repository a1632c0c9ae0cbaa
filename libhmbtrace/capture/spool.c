// SPDX-License-Identifier: Apache-2.0
/*
 * The spool: a file of our own that is mapped, so that what was committed
 * survives the daemon.  Journal and data are rings that are mapped twice back
 * to back, so that every batch is contiguous.
 *
 * A commit writes the slot that is not current and then publishes it by one
 * release store: a process killed at any instruction leaves the old commit or
 * the new one, never a mixture.  Each slot has a check, and the bytes of both
 * rings have sums, so that a leftover is what was committed or known not to be.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "copy.h"
#include "core.h"
#include "spool.h"
#include "sum.h"
#include "testpoint.h"

#define WAIT_STEP_MIN_NS 200000u
#define WAIT_STEP_MAX_NS 40000000u

_Static_assert(sizeof(struct superblock) <= BINDING_BLOCK, "superblock fits its page");
_Static_assert(BINDING_BLOCK + sizeof(struct binding_block) <= COLLECTOR_BLOCK, "so do these");
_Static_assert(COLLECTOR_BLOCK + sizeof(struct collector_block) <= WRITER_BLOCK, "and these");
_Static_assert(WRITER_BLOCK + sizeof(struct writer_block) <= LIVE_BLOCK, "and these");
_Static_assert(offsetof(struct superblock, check) % 8 == 0, "checked word by word");
_Static_assert(sizeof(struct binding) % 8 == 0, "copied word by word");
_Static_assert(sizeof(struct hmb_commit) % 8 == 0, "copied word by word");
_Static_assert(sizeof(struct hmb_writer_commit) % 8 == 0, "copied word by word");

/* Word by word and relaxed: the other side may be overwriting the slot, and then we retry. */
static void copy_words(void *to, const void *from, uint64_t bytes)
{
	uint64_t *target = to;
	const uint64_t *source = from;

	for (uint64_t i = 0; i < bytes / 8; i++)
		__atomic_store_n(&target[i], __atomic_load_n(&source[i], __ATOMIC_RELAXED),
				 __ATOMIC_RELAXED);
}

/* ---- slots: two of each, one of them current ---- */

/*
 * The current slot, consistent.  The other side publishes by a release store
 * of generation (pairs with the acquire loads here); a slot is rewritten only
 * after one more publish, so an unchanged generation proves the copy whole.
 */
static void read_slot(const struct slots *slots, const void *slot, uint64_t size, void *to)
{
	uint64_t before, after;

	do {
		before = __atomic_load_n(&slots->generation, __ATOMIC_ACQUIRE);
		copy_words(to, (const uint8_t *)slot + (before & 1) * size, size);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		after = __atomic_load_n(&slots->generation, __ATOMIC_RELAXED);
	} while (after != before);
}

/* Write the slot that is not current, with its check; back comes its generation. */
static uint64_t write_slot(struct slots *slots, void *slot, uint64_t size, const void *from)
{
	uint64_t next = published((uint32_t)slots->generation + 1);

	/* Pairs with the fence in read_slot(): words of this slot are seen after the last publish. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	copy_words((uint8_t *)slot + (next & 1) * size, from, size);
	slots->check[next & 1] = check_of(next, from, size);
	return next;
}

static void publish_slot(struct slots *slots, uint64_t generation)
{
	/* What the slot speaks of is in place. Pairs with the acquire in read_slot(). */
	__atomic_store_n(&slots->generation, generation, __ATOMIC_RELEASE);
}

/* Both slots are zeros: the first is the current one. */
static void begin_slots(struct slots *slots, const void *slot, uint64_t size)
{
	slots->generation = published(0);
	slots->check[0] = check_of(published(0), slot, size);
}

static int slot_intact(const struct slots *slots, uint64_t generation, const void *slot,
		       uint64_t size)
{
	return slots->check[generation & 1] ==
	       check_of(generation, (const uint8_t *)slot + (generation & 1) * size, size);
}

/* The other slot is of no use: an older commit knows nothing of what was freed since. */
static int current_intact(const struct slots *slots, const void *slot, uint64_t size)
{
	return slots->generation == published((uint32_t)slots->generation) &&
	       slot_intact(slots, slots->generation, slot, size);
}

/* ---- sums of the bytes in the rings ---- */

static struct block_sum *sums_of(const struct hmb_spool *spool, uint64_t skip)
{
	return (struct block_sum *)(spool->map + SPOOL_HEADER) + skip;
}

struct ring_of_bytes spool_data(const struct hmb_spool *spool)
{
	return (struct ring_of_bytes){ .bytes = spool->data,
				       .size = spool->data_size,
				       .block = sum_block(spool->data_size),
				       .sums = sums_of(spool, 0),
				       .count = sum_count(spool->data_size) };
}

struct ring_of_bytes spool_journal(const struct hmb_spool *spool)
{
	return (struct ring_of_bytes){ .bytes = spool->journal,
				       .size = spool->journal_size,
				       .block = sum_block(spool->journal_size),
				       .sums = sums_of(spool, sum_count(spool->data_size)),
				       .count = sum_count(spool->journal_size) };
}

static void end_block(const struct ring_of_bytes *ring, struct hmb_sum *sum, uint64_t number,
		      int store)
{
	if (store)
		ring->sums[number % ring->count] =
			(struct block_sum){ number, check_of(number, sum, sizeof(*sum)) };
	*sum = (struct hmb_sum){ 0 };
}

void sum_on(const struct ring_of_bytes *ring, struct hmb_sum *sum, uint64_t from, uint64_t to,
	    int store)
{
	while (from < to) {
		uint64_t number = from / ring->block, end = (number + 1) * ring->block;
		uint64_t until = HMB_MIN(end, to);

		sum_words(sum, ring->bytes + from % ring->size / SUM_WORD * SUM_WORD,
			  from / SUM_WORD, until / SUM_WORD);
		if (until == end)
			end_block(ring, sum, number, store);
		from = until;
	}
}

/* The block that is being freed keeps all of its bytes, or its sum would prove nothing. */
static uint64_t room(const struct ring_of_bytes *ring, uint64_t head, uint64_t tail)
{
	return ring->size - (head - tail / ring->block * ring->block);
}

void hmb_spool_set_reserved(struct hmb_spool *spool, uint64_t bytes)
{
	/* Pairs with the acquire in hmb_spool_data_room(): the pages are there. */
	__atomic_store_n(&spool->reserved, bytes, __ATOMIC_RELEASE);
}

uint64_t hmb_spool_data_room(const struct hmb_spool *spool, uint64_t data_head)
{
	struct ring_of_bytes ring = spool_data(spool);
	uint64_t free = room(&ring, data_head, hmb_spool_data_tail(spool));
	uint64_t reserved = __atomic_load_n(&spool->reserved, __ATOMIC_ACQUIRE);

	if (reserved >= spool->data_size)
		return free;
	return data_head < reserved ? HMB_MIN(free, reserved - data_head) : 0;
}

uint64_t hmb_spool_journal_room(const struct hmb_spool *spool, uint64_t journal_head)
{
	struct ring_of_bytes ring = spool_journal(spool);

	return room(&ring, journal_head, hmb_spool_journal_tail(spool));
}

/* ---- mapping ---- */

static uint64_t sums_size(uint64_t data_size, uint64_t journal_size)
{
	uint64_t page = SPOOL_HEADER;
	uint64_t bytes =
		(sum_count(data_size) + sum_count(journal_size)) * sizeof(struct block_sum);

	return (bytes + page - 1) / page * page;
}

uint64_t hmb_spool_file_size(uint64_t data_size, uint64_t journal_size)
{
	return SPOOL_HEADER + sums_size(data_size, journal_size) + journal_size + data_size;
}

static int map_at(uint8_t *where, uint64_t size, int fd, uint64_t offset)
{
	void *got = mmap(where, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			 (off_t)offset);

	return got == MAP_FAILED ? -errno : 0;
}

static int map_pieces(struct hmb_spool *spool, int fd)
{
	uint64_t journal_off = SPOOL_HEADER + sums_size(spool->data_size, spool->journal_size);
	uint64_t data_off = journal_off + spool->journal_size;
	int err = map_at(spool->map, journal_off, fd, 0);

	for (int twice = 0; twice < 2 && !err; twice++)
		err = map_at(spool->journal + twice * spool->journal_size, spool->journal_size, fd,
			     journal_off);
	for (int twice = 0; twice < 2 && !err; twice++)
		err = map_at(spool->data + twice * spool->data_size, spool->data_size, fd,
			     data_off);
	return err;
}

static int sizes_sane(uint64_t file_size, uint64_t data_size, uint64_t journal_size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return data_size && journal_size && data_size % page == 0 && journal_size % page == 0 &&
	       data_size <= file_size && journal_size <= file_size &&
	       hmb_spool_file_size(data_size, journal_size) == file_size;
}

static int map_spool(struct hmb_spool *spool, int fd, uint64_t data_size, uint64_t journal_size)
{
	uint64_t front = SPOOL_HEADER + sums_size(data_size, journal_size);
	uint64_t total = front + 2 * (journal_size + data_size);
	void *space =
		mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int err;

	if (space == MAP_FAILED)
		return -errno;
	*spool = (struct hmb_spool){
		.map = space,
		.map_size = total,
		.journal = (uint8_t *)space + front,
		.journal_size = journal_size,
		.data = (uint8_t *)space + front + 2 * journal_size,
		.data_size = data_size,
		.reserved = data_size,
	};
	err = map_pieces(spool, fd);
	if (err)
		hmb_spool_unmap(spool);
	return err;
}

void hmb_spool_unmap(struct hmb_spool *spool)
{
	if (spool->map)
		munmap(spool->map, spool->map_size);
	*spool = (struct hmb_spool){ 0 };
}

/* ---- header ---- */

static uint64_t check_of_superblock(const struct superblock *super)
{
	return check_of(SPOOL_MAGIC, super, offsetof(struct superblock, check));
}

static void format_header(struct hmb_spool *spool, const char *identity)
{
	struct superblock super = { .magic = SPOOL_MAGIC,
				    .version = SPOOL_VERSION,
				    .commit_size = sizeof(struct hmb_commit),
				    .writer_size = sizeof(struct hmb_writer_commit),
				    .event_size = sizeof(struct hmb_event),
				    .data_size = spool->data_size,
				    .journal_size = spool->journal_size };
	struct binding_block *binding = binding_block(spool);
	struct collector_block *collector = collector_block(spool);
	struct writer_block *writer = writer_block(spool);

	memset(spool->map, 0, SPOOL_HEADER);
	strncpy(binding->slot[0].identity, identity, IDENTITY_SIZE - 1);
	begin_slots(&binding->slots, binding->slot, sizeof(*binding->slot));
	begin_slots(&collector->slots, collector->slot, sizeof(*collector->slot));
	begin_slots(&writer->slots, writer->slot, sizeof(*writer->slot));
	super.check = check_of_superblock(&super);
	memcpy((uint8_t *)superblock(spool) + 8, (uint8_t *)&super + 8, sizeof(super) - 8);
	/* Last, so that a header half written is no header. Pairs with read_header(). */
	__atomic_store_n(&superblock(spool)->magic, SPOOL_MAGIC, __ATOMIC_RELEASE);
}

static uint64_t word_in(int fd, uint64_t offset)
{
	uint64_t word = 0;

	return pread(fd, &word, sizeof(word), (off_t)offset) == (ssize_t)sizeof(word) ? word : 0;
}

/* The magic is a new header's last store, the first commits come after it. */
static int never_begun(int fd)
{
	return !word_in(fd, 0) && !(uint32_t)word_in(fd, COLLECTOR_BLOCK) &&
	       !(uint32_t)word_in(fd, WRITER_BLOCK);
}

/* Version 2 had no check in its superblock: it is known by all that is fixed in it. */
static int is_version_2(const struct superblock *super)
{
	return super->version == 2 && super->commit_size && super->writer_size &&
	       super->commit_size < sizeof(struct hmb_commit) && !super->event_size;
}

static int read_header(int fd, struct superblock *super)
{
	if (never_begun(fd))
		return -ENODATA;
	if (pread(fd, super, sizeof(*super), 0) != (ssize_t)sizeof(*super) ||
	    super->magic != SPOOL_MAGIC)
		return -EBADMSG;
	if (super->check != check_of_superblock(super))
		return is_version_2(super) ? -EPROTONOSUPPORT : -EBADMSG;
	if (super->version != SPOOL_VERSION || super->commit_size != sizeof(struct hmb_commit) ||
	    super->writer_size != sizeof(struct hmb_writer_commit) ||
	    super->event_size != sizeof(struct hmb_event))
		return -EPROTONOSUPPORT;
	return 0;
}

/* Whether what the commits say can be: forged or not, nobody is sent out of the rings. */
static int commits_sane(const struct hmb_spool *spool)
{
	struct ring_of_bytes data = spool_data(spool), journal = spool_journal(spool);
	struct hmb_writer_commit written;
	struct hmb_commit current;

	/* In this order: what is freed afterwards only makes room. */
	hmb_spool_read_writer(spool, &written);
	hmb_spool_read_commit(spool, &current);
	return room(&data, current.data_head, written.data_tail) <= data.size &&
	       room(&journal, current.journal_head, written.journal_tail) <= journal.size &&
	       current.data_head >= written.data_tail &&
	       current.journal_head >= written.journal_tail;
}

static int collector_intact(const struct hmb_spool *spool)
{
	const struct collector_block *block = collector_block(spool);

	return current_intact(&block->slots, block->slot, sizeof(*block->slot));
}

static int writer_intact(const struct hmb_spool *spool)
{
	const struct writer_block *block = writer_block(spool);

	return current_intact(&block->slots, block->slot, sizeof(*block->slot));
}

/* The process may have died between a publish and the stores that follow it. */
static void restore_heads(struct hmb_spool *spool)
{
	struct collector_block *block = collector_block(spool);
	const struct hmb_commit *current = &block->slot[block->slots.generation & 1];

	block->data_head = current->data_head;
	block->journal_head = current->journal_head;
}

static void restore_tails(struct hmb_spool *spool)
{
	struct writer_block *block = writer_block(spool);
	const struct hmb_writer_commit *written = &block->slot[block->slots.generation & 1];

	block->data_tail = written->data_tail;
	block->journal_tail = written->journal_tail;
}

/* -EBADMSG when a slot is damaged, or more is said to wait than the spool can hold. */
static int judge_leftover(struct hmb_spool *spool, int mode)
{
	const struct binding_block *binding = binding_block(spool);

	if (!current_intact(&binding->slots, binding->slot, sizeof(*binding->slot)) ||
	    (!(mode & HMB_SPOOL_JOIN_COLLECTOR) && !collector_intact(spool)) ||
	    (!(mode & HMB_SPOOL_JOIN_WRITER) && !writer_intact(spool)) || !commits_sane(spool))
		return -EBADMSG;
	if (!(mode & HMB_SPOOL_JOIN_COLLECTOR))
		restore_heads(spool);
	if (!(mode & HMB_SPOOL_JOIN_WRITER))
		restore_tails(spool);
	return 0;
}

int hmb_spool_map(struct hmb_spool *spool, int fd, uint64_t file_size, uint64_t data_size,
		  uint64_t journal_size, const char *identity, int mode)
{
	int create = mode == HMB_SPOOL_CREATE;
	struct superblock super;
	int err;

	if (!create) {
		err = read_header(fd, &super);
		if (err)
			return err;
		data_size = super.data_size;
		journal_size = super.journal_size;
	}
	if (!sizes_sane(file_size, data_size, journal_size))
		return create ? -EINVAL : -EBADMSG;
	err = map_spool(spool, fd, data_size, journal_size);
	if (err)
		return err;
	if (create)
		format_header(spool, identity);
	else
		err = judge_leftover(spool, mode);
	if (err)
		hmb_spool_unmap(spool);
	return err;
}

const char *hmb_spool_identity(const struct hmb_spool *spool)
{
	const struct binding_block *block = binding_block(spool);

	return block->slot[block->slots.generation & 1].identity;
}

void hmb_spool_set_identity(struct hmb_spool *spool, const char *identity)
{
	struct binding_block *block = binding_block(spool);
	struct binding fresh = { { 0 } };

	strncpy(fresh.identity, identity, IDENTITY_SIZE - 1);
	publish_slot(&block->slots, write_slot(&block->slots, block->slot, sizeof(fresh), &fresh));
}

/* ---- commits ---- */

void hmb_spool_read_commit(const struct hmb_spool *spool, struct hmb_commit *commit)
{
	struct collector_block *block = collector_block(spool);

	read_slot(&block->slots, block->slot, sizeof(*commit), commit);
}

void hmb_spool_read_writer(const struct hmb_spool *spool, struct hmb_writer_commit *commit)
{
	struct writer_block *block = writer_block(spool);

	read_slot(&block->slots, block->slot, sizeof(*commit), commit);
}

int read_previous(const struct hmb_spool *spool, struct hmb_commit *commit)
{
	const struct collector_block *block = collector_block(spool);
	uint64_t before = published((uint32_t)block->slots.generation - 1);

	if (!slot_intact(&block->slots, before, block->slot, sizeof(*commit)))
		return 0;
	copy_words(commit, &block->slot[before & 1], sizeof(*commit));
	return 1;
}

int next_was_begun(const struct hmb_spool *spool)
{
	const struct collector_block *block = collector_block(spool);
	uint64_t next = published((uint32_t)block->slots.generation + 1);

	return slot_intact(&block->slots, next, block->slot, sizeof(*block->slot));
}

/* The sums of the last commit, gone on with over what this one adds. */
static void sum_up(const struct hmb_spool *spool, struct hmb_commit *commit)
{
	const struct collector_block *block = collector_block(spool);
	const struct hmb_commit *last = &block->slot[block->slots.generation & 1];
	struct ring_of_bytes data = spool_data(spool), journal = spool_journal(spool);

	commit->data_sum = last->data_sum;
	commit->journal_sum = last->journal_sum;
	if (commit->data_head - last->data_head <= data.size)
		sum_on(&data, &commit->data_sum, last->data_head, commit->data_head, 1);
	if (commit->journal_head - last->journal_head <= journal.size)
		sum_on(&journal, &commit->journal_sum, last->journal_head, commit->journal_head, 1);
}

void hmb_spool_commit(struct hmb_spool *spool, const struct hmb_commit *commit)
{
	struct collector_block *block = collector_block(spool);
	struct hmb_commit full = *commit;
	uint64_t generation;

	sum_up(spool, &full);
	generation = write_slot(&block->slots, block->slot, sizeof(full), &full);
	testpoint(HMB_TESTPOINT_INSIDE_COMMIT);
	publish_slot(&block->slots, generation);
	/* Pair with the acquires in hmb_spool_*_head(): data and journal bytes are in place. */
	__atomic_store_n(&block->journal_head, commit->journal_head, __ATOMIC_RELEASE);
	__atomic_store_n(&block->data_head, commit->data_head, __ATOMIC_RELEASE);
}

void hmb_spool_commit_writer(struct hmb_spool *spool, const struct hmb_writer_commit *commit)
{
	struct writer_block *block = writer_block(spool);

	publish_slot(&block->slots,
		     write_slot(&block->slots, block->slot, sizeof(*commit), commit));
	/* Frees what lies before. Pairs with the acquires in hmb_spool_*_tail(). */
	__atomic_store_n(&block->journal_tail, commit->journal_tail, __ATOMIC_RELEASE);
	__atomic_store_n(&block->data_tail, commit->data_tail, __ATOMIC_RELEASE);
}

uint64_t hmb_spool_data_head(const struct hmb_spool *spool)
{
	/* Pairs with the release in hmb_spool_commit(). */
	return __atomic_load_n(&collector_block(spool)->data_head, __ATOMIC_ACQUIRE);
}

uint64_t hmb_spool_journal_head(const struct hmb_spool *spool)
{
	/* Pairs with the release in hmb_spool_commit(). */
	return __atomic_load_n(&collector_block(spool)->journal_head, __ATOMIC_ACQUIRE);
}

uint64_t hmb_spool_data_tail(const struct hmb_spool *spool)
{
	/* Pairs with the release in hmb_spool_commit_writer(): its reads of those bytes are over. */
	return __atomic_load_n(&writer_block(spool)->data_tail, __ATOMIC_ACQUIRE);
}

uint64_t hmb_spool_journal_tail(const struct hmb_spool *spool)
{
	/* Pairs with the release in hmb_spool_commit_writer(). */
	return __atomic_load_n(&writer_block(spool)->journal_tail, __ATOMIC_ACQUIRE);
}

/* ---- the writer's side ---- */

static int worth_waking(const struct hmb_spool *spool, uint64_t pos, uint64_t want,
			uint64_t journal_pos)
{
	return hmb_spool_data_head(spool) - pos >= want ||
	       hmb_spool_journal_head(spool) - journal_pos >= spool->journal_size / 4;
}

uint64_t hmb_spool_wait(const struct hmb_spool *spool, uint64_t pos, uint64_t want,
			uint64_t journal_pos, uint64_t timeout_ns, const uint32_t *wake)
{
	uint64_t start = monotonic_ns(), waited = 0, step = WAIT_STEP_MIN_NS;

	while (waited < timeout_ns && !worth_waking(spool, pos, want, journal_pos)) {
		if (__atomic_load_n(wake, __ATOMIC_RELAXED))
			break;
		sleep_ns(HMB_MIN(step, timeout_ns - waited));
		step = HMB_MIN(step * 2, WAIT_STEP_MAX_NS);
		waited = monotonic_ns() - start;
	}
	return hmb_spool_data_head(spool) - pos;
}

void hmb_spool_copy(const struct hmb_spool *spool, void *to, uint64_t pos, uint64_t n)
{
	hmb_copy(to, spool->data + pos % spool->data_size, n);
}

void hmb_spool_stream(const struct hmb_spool *spool, void *to, uint64_t pos, uint64_t n)
{
	hmb_copy_past_caches(to, spool->data + pos % spool->data_size, n);
}
