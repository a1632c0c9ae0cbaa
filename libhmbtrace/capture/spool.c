// SPDX-License-Identifier: Apache-2.0
/*
 * The spool: a file of our own that is mapped, so that what was committed
 * survives the daemon.  Journal and data are rings that are mapped twice back
 * to back, so that every batch is contiguous.
 *
 * A commit writes the slot that is not current and then publishes it by one
 * release store: a process killed at any instruction leaves the old commit or
 * the new one, never a mixture.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "copy.h"
#include "core.h"
#include "pass.h"
#include "testpoint.h"

#define SPOOL_MAGIC 0x4C4F4F5053424D48u /* "HMBSPOOL" in memory order */
#define SPOOL_VERSION 2u
#define SPOOL_HEADER 65536u /* bytes: a page of every page size in use */
#define COLLECTOR_BLOCK 4096u
#define WRITER_BLOCK 8192u
#define IDENTITY_SIZE 256u
#define CHECK_FACTOR 0x9E3779B97F4A7C15u /* odd, so that no word's change is lost */

#define WAIT_STEP_MIN_NS 200000u
#define WAIT_STEP_MAX_NS 40000000u

struct superblock {
	uint64_t magic;
	uint32_t version;
	uint32_t commit_size;
	uint32_t writer_size;
	uint32_t reserved;
	uint64_t data_size;
	uint64_t journal_size;
	char identity[IDENTITY_SIZE];
};

struct collector_block {
	uint64_t generation; /* published() */
	uint64_t data_head; /* of the current commit, for readers that want only this */
	uint64_t journal_head;
	uint64_t check[2]; /* of each slot and its generation */
	uint64_t pad[3];
	struct hmb_commit slot[2];
};

struct writer_block {
	uint64_t generation; /* published() */
	uint64_t data_tail; /* of the current commit, for the collector */
	uint64_t journal_tail;
	uint64_t check[2]; /* of each slot and its generation */
	uint64_t pad[3];
	struct hmb_writer_commit slot[2];
};

_Static_assert(sizeof(struct superblock) <= COLLECTOR_BLOCK, "superblock fits its page");
_Static_assert(COLLECTOR_BLOCK + sizeof(struct collector_block) <= WRITER_BLOCK,
	       "collector's slots fit their page");
_Static_assert(WRITER_BLOCK + sizeof(struct writer_block) <= SPOOL_HEADER, "writer's slots fit");
_Static_assert(sizeof(struct hmb_commit) % 8 == 0, "copied word by word");
_Static_assert(sizeof(struct hmb_writer_commit) % 8 == 0, "copied word by word");

static struct superblock *superblock(const struct hmb_spool *spool)
{
	return (struct superblock *)spool->map;
}

static struct collector_block *collector_block(const struct hmb_spool *spool)
{
	return (struct collector_block *)(spool->map + COLLECTOR_BLOCK);
}

static struct writer_block *writer_block(const struct hmb_spool *spool)
{
	return (struct writer_block *)(spool->map + WRITER_BLOCK);
}

/* Word by word and relaxed: the other side may be overwriting the slot, and then we retry. */
static void copy_words(void *to, const void *from, uint64_t bytes)
{
	uint64_t *target = to;
	const uint64_t *source = from;

	for (uint64_t i = 0; i < bytes / 8; i++)
		__atomic_store_n(&target[i], __atomic_load_n(&source[i], __ATOMIC_RELAXED),
				 __ATOMIC_RELAXED);
}

/* A number of a commit as it is published: its complement beside it, since it chooses the slot. */
static uint64_t published(uint32_t generation)
{
	return (uint64_t)~generation << 32 | generation;
}

/* The generation is part of it: a slot is no other commit's. */
static uint64_t check_of(uint64_t generation, const void *slot, uint64_t bytes)
{
	const uint64_t *words = slot;
	uint64_t check = generation;

	for (uint64_t i = 0; i < bytes / 8; i++) {
		check = (check ^ words[i]) * CHECK_FACTOR;
		check ^= check >> 32;
	}
	return check;
}

/* ---- mapping ---- */

uint64_t hmb_spool_file_size(uint64_t data_size, uint64_t journal_size)
{
	return SPOOL_HEADER + journal_size + data_size;
}

static int map_at(uint8_t *where, uint64_t size, int fd, uint64_t offset)
{
	void *got = mmap(where, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			 (off_t)offset);

	return got == MAP_FAILED ? -errno : 0;
}

static int map_pieces(struct hmb_spool *spool, int fd)
{
	uint64_t journal_off = SPOOL_HEADER, data_off = SPOOL_HEADER + spool->journal_size;
	int err = map_at(spool->map, SPOOL_HEADER, fd, 0);

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
	uint64_t total = SPOOL_HEADER + 2 * (journal_size + data_size);
	void *space =
		mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int err;

	if (space == MAP_FAILED)
		return -errno;
	*spool = (struct hmb_spool){
		.map = space,
		.map_size = total,
		.journal = (uint8_t *)space + SPOOL_HEADER,
		.journal_size = journal_size,
		.data = (uint8_t *)space + SPOOL_HEADER + 2 * journal_size,
		.data_size = data_size,
	};
	err = map_pieces(spool, fd);
	if (err)
		hmb_spool_unmap(spool);
	return err;
}

static void format_header(struct hmb_spool *spool, const char *identity)
{
	struct superblock *super = superblock(spool);
	struct collector_block *collector = collector_block(spool);
	struct writer_block *writer = writer_block(spool);

	memset(spool->map, 0, SPOOL_HEADER);
	super->version = SPOOL_VERSION;
	super->commit_size = sizeof(struct hmb_commit);
	super->writer_size = sizeof(struct hmb_writer_commit);
	super->data_size = spool->data_size;
	super->journal_size = spool->journal_size;
	collector->generation = writer->generation = published(0);
	collector->check[0] = check_of(published(0), collector->slot, sizeof(*collector->slot));
	writer->check[0] = check_of(published(0), writer->slot, sizeof(*writer->slot));
	strncpy(super->identity, identity, IDENTITY_SIZE - 1);
	/* Last, so that a header half written is no header. Pairs with read_header(). */
	__atomic_store_n(&super->magic, SPOOL_MAGIC, __ATOMIC_RELEASE);
}

static uint64_t word_at(int fd, uint64_t offset)
{
	uint64_t word = 0;

	return pread(fd, &word, sizeof(word), (off_t)offset) == (ssize_t)sizeof(word) ? word : 0;
}

/* The magic is a new header's last store, the first commits come after it. */
static int never_begun(int fd)
{
	return !word_at(fd, 0) && !(uint32_t)word_at(fd, COLLECTOR_BLOCK) &&
	       !(uint32_t)word_at(fd, WRITER_BLOCK);
}

static int read_header(int fd, struct superblock *super)
{
	if (never_begun(fd))
		return -ENODATA;
	if (pread(fd, super, sizeof(*super), 0) != (ssize_t)sizeof(*super) ||
	    super->magic != SPOOL_MAGIC)
		return -EBADMSG;
	if (super->version != SPOOL_VERSION || super->commit_size != sizeof(struct hmb_commit) ||
	    super->writer_size != sizeof(struct hmb_writer_commit))
		return -EPROTONOSUPPORT;
	return super->identity[IDENTITY_SIZE - 1] ? -EBADMSG : 0;
}

/* The other slot is of no use: an older commit knows nothing of what was freed since. */
static int commit_intact(uint64_t generation, const uint64_t *check, const void *slots,
			 uint64_t size)
{
	const uint8_t *slot = (const uint8_t *)slots + (generation & 1) * size;

	return generation == published((uint32_t)generation) &&
	       check[generation & 1] == check_of(generation, slot, size);
}

/*
 * The process may have died between a publish and the stores that follow it.
 * -EBADMSG when a commit is damaged, or more is said to wait than the spool can hold.
 */
static int restore_heads(struct hmb_spool *spool)
{
	struct collector_block *block = collector_block(spool);
	const struct hmb_commit *current = &block->slot[block->generation & 1];
	struct writer_block *writer = writer_block(spool);
	const struct hmb_writer_commit *written = &writer->slot[writer->generation & 1];

	if (!commit_intact(block->generation, block->check, block->slot, sizeof(*current)) ||
	    !commit_intact(writer->generation, writer->check, writer->slot, sizeof(*written)))
		return -EBADMSG;
	block->data_head = current->data_head;
	block->journal_head = current->journal_head;
	writer->data_tail = written->data_tail;
	writer->journal_tail = written->journal_tail;
	if (current->data_head - written->data_tail > spool->data_size ||
	    current->journal_head - written->journal_tail > spool->journal_size)
		return -EBADMSG;
	return 0;
}

int hmb_spool_map(struct hmb_spool *spool, int fd, uint64_t file_size, uint64_t data_size,
		  uint64_t journal_size, const char *identity, int create)
{
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
		err = restore_heads(spool);
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

const char *hmb_spool_identity(const struct hmb_spool *spool)
{
	return superblock(spool)->identity;
}

void hmb_spool_set_identity(struct hmb_spool *spool, const char *identity)
{
	/* Killed halfway it fits no ring: what is in the spool is sealed, a new epoch begins. */
	strncpy(superblock(spool)->identity, identity, IDENTITY_SIZE - 1);
}

/* ---- commits ---- */

/*
 * The current slot, consistent.  The other side publishes by a release store
 * of generation (pairs with the acquire loads here); a slot is rewritten only
 * after one more publish, so an unchanged generation proves the copy whole.
 */
static void read_slot(const uint64_t *generation, const void *slots, uint64_t size, void *to)
{
	uint64_t before, after;

	do {
		before = __atomic_load_n(generation, __ATOMIC_ACQUIRE);
		copy_words(to, (const uint8_t *)slots + (before & 1) * size, size);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		after = __atomic_load_n(generation, __ATOMIC_RELAXED);
	} while (after != before);
}

/* The slot of the next generation, safe to overwrite once its predecessor's publish is visible. */
static void write_slot(uint64_t next, void *slots, uint64_t size, const void *from)
{
	/* Pairs with the fence in read_slot(): words of this slot are seen after the last publish. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	copy_words((uint8_t *)slots + (next & 1) * size, from, size);
}

void hmb_spool_read_commit(const struct hmb_spool *spool, struct hmb_commit *commit)
{
	struct collector_block *block = collector_block(spool);

	read_slot(&block->generation, block->slot, sizeof(*commit), commit);
}

void hmb_spool_read_writer(const struct hmb_spool *spool, struct hmb_writer_commit *commit)
{
	struct writer_block *block = writer_block(spool);

	read_slot(&block->generation, block->slot, sizeof(*commit), commit);
}

void hmb_spool_commit(struct hmb_spool *spool, const struct hmb_commit *commit)
{
	struct collector_block *block = collector_block(spool);
	uint64_t next = published((uint32_t)block->generation + 1);

	write_slot(next, block->slot, sizeof(*commit), commit);
	block->check[next & 1] = check_of(next, commit, sizeof(*commit));
	testpoint(HMB_TESTPOINT_INSIDE_COMMIT);
	/* Publish: data and journal bytes are in place. Pairs with read_slot() and the heads below. */
	__atomic_store_n(&block->generation, next, __ATOMIC_RELEASE);
	__atomic_store_n(&block->journal_head, commit->journal_head, __ATOMIC_RELEASE);
	__atomic_store_n(&block->data_head, commit->data_head, __ATOMIC_RELEASE);
}

void hmb_spool_commit_writer(struct hmb_spool *spool, const struct hmb_writer_commit *commit)
{
	struct writer_block *block = writer_block(spool);
	uint64_t next = published((uint32_t)block->generation + 1);

	write_slot(next, block->slot, sizeof(*commit), commit);
	block->check[next & 1] = check_of(next, commit, sizeof(*commit));
	/* Pairs with the acquire in read_slot(). */
	__atomic_store_n(&block->generation, next, __ATOMIC_RELEASE);
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

/* ---- recovery ---- */

/*
 * The commit before the current one: intact as long as no later commit was begun.  Its check
 * is not looked at: whoever uses it compares what follows from it, byte by byte.
 */
static void read_previous(const struct hmb_spool *spool, struct hmb_commit *commit)
{
	struct collector_block *block = collector_block(spool);

	copy_words(commit, &block->slot[(block->generation + 1) & 1], sizeof(*commit));
}

/* Take the last pass once more, from the ring, into a buffer of its own. */
static int64_t take_again(const struct hmb_spool *spool, const struct hmb_ring *ring,
			  const struct hmb_commit *last, struct hmb_state *state,
			  const struct hmb_options *options, struct hmb_sink *sink)
{
	uint64_t span = last->tail_after - last->tail_before;

	/* A span may be long where a marker skips; what came of it did fit into the spool. */
	sink->data_cap = HMB_MIN(span, spool->data_size) + hmb_collect_slack();
	sink->events_cap = spool->journal_size + 2 * hmb_collect_min_events();
	sink->data = calloc(1, sink->data_cap);
	sink->events = calloc(1, sink->events_cap);
	if (!sink->data || !sink->events)
		return -ENOMEM;
	return hmb_collect_upto(ring, state, options, sink, last->head_seen, last->tail_before);
}

/* Whether the last pass, taken once more under these options, gives the spool's dump bytes. */
static int same_data(const struct hmb_spool *spool, const struct hmb_ring *ring,
		     const struct hmb_commit *previous, const struct hmb_commit *last,
		     const struct hmb_options *options)
{
	struct hmb_state state = previous->state;
	struct hmb_sink sink = { 0 };
	int same = take_again(spool, ring, last, &state, options, &sink) >= 0 &&
		   state.tail == last->tail_after &&
		   previous->data_head + sink.data_len == last->data_head &&
		   !memcmp(sink.data, spool->data + previous->data_head % spool->data_size,
			   sink.data_len);

	free(sink.data);
	free(sink.events);
	return same;
}

static int ring_holds(const struct hmb_ring *ring, uint64_t cursor, const uint8_t *bytes,
		      uint64_t n)
{
	const uint8_t *area = ring->base + HMB_RECORD_AREA_OFF;
	uint64_t offset = cursor & (ring->ring_size - 1),
		 first = HMB_MIN(n, ring->ring_size - offset);

	return n <= ring->ring_size && !memcmp(area + offset, bytes, first) &&
	       !memcmp(area, bytes + first, n - first);
}

/* Whether what the last pass rejected still stands in the ring. */
static int same_rejects(const struct hmb_spool *spool, const struct hmb_ring *ring, uint64_t from,
			uint64_t to)
{
	const struct hmb_event *event;

	for (; from != to; from += sizeof(*event) + hmb_align8(event->length)) {
		event = (const void *)(spool->journal + from % spool->journal_size);
		if (to - from > spool->journal_size || event->magic != HMB_EVENT_MAGIC ||
		    event->length > to - from)
			return 0;
		if (event->kind == HMB_EV_REJECT &&
		    !ring_holds(ring, event->cursor, (const uint8_t *)(event + 1), event->length))
			return 0;
	}
	return 1;
}

static int same_bytes(const struct hmb_spool *spool, const struct hmb_ring *ring,
		      const struct hmb_commit *last, const struct hmb_options *options)
{
	/* R9's stop ends a pass early; where this one ended, the commit says. */
	struct hmb_options now = { .keep_unknown_flags = options->keep_unknown_flags };
	/* The daemon may have been restarted with the other choice (R10). */
	struct hmb_options other = { .keep_unknown_flags = !options->keep_unknown_flags };
	struct hmb_commit previous;

	read_previous(spool, &previous);
	if (previous.state.tail != last->tail_before)
		return 0;
	return same_rejects(spool, ring, previous.journal_head, last->journal_head) &&
	       (same_data(spool, ring, &previous, last, &now) ||
		same_data(spool, ring, &previous, last, &other));
}

int hmb_spool_continues(const struct hmb_spool *spool, const struct hmb_ring *ring,
			const struct hmb_options *options)
{
	struct hmb_ring_view view;
	struct hmb_commit last;

	hmb_spool_read_commit(spool, &last);
	hmb_ring_view(ring, &view);
	if (!hmb_cursors_valid(view.head, view.tail, ring->ring_size))
		return 0;
	if (view.tail == last.tail_after)
		return 1;
	if (view.tail != last.tail_before ||
	    view.head - last.tail_before < last.head_seen - last.tail_before ||
	    last.tail_after - last.tail_before > ring->ring_size)
		return 0;
	return same_bytes(spool, ring, &last, options) ? 2 : 0;
}
