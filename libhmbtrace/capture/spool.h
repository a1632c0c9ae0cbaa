/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a spool's file is laid out (docs/durability.md): private to spool.c and recover.c.
 *
 *       0  superblock: sizes and version, written once
 *    4096  binding: which ring the records are of, two slots
 *    8192  collector: its commits, two slots
 *   12288  writer: its commits, two slots
 *   16384  live: what two processes tell each other while both run (api.h, struct hmb_live)
 *   65536  sums of journal and data, then journal, then data
 */
#ifndef HMB_SPOOL_H
#define HMB_SPOOL_H

#include "core.h"

#define SPOOL_MAGIC 0x4C4F4F5053424D48u /* "HMBSPOOL" in memory order */
#define SPOOL_VERSION 3u
#define SPOOL_HEADER 65536u /* bytes: a page of every page size in use */
#define BINDING_BLOCK 4096u
#define COLLECTOR_BLOCK 8192u
#define WRITER_BLOCK 12288u
#define LIVE_BLOCK 16384u
#define IDENTITY_SIZE 256u

#define SUM_BLOCK_MAX 65536u /* bytes a sum is taken of */
#define SUM_BLOCK_MIN 64u
#define SUM_BLOCKS_MIN 64u /* a small spool has smaller blocks, at least so many */

/* Who writes a slot says which is current by `generation`; see published(). */
struct slots {
	uint64_t generation;
	uint64_t check[2]; /* of each slot and its generation */
	uint64_t pad;
};

struct superblock {
	uint64_t magic;
	uint32_t version;
	uint32_t commit_size;
	uint32_t writer_size;
	uint32_t event_size;
	uint64_t data_size;
	uint64_t journal_size;
	uint64_t check; /* of what stands before it */
};

struct binding {
	char identity[IDENTITY_SIZE];
};

struct binding_block {
	struct slots slots;
	struct binding slot[2];
};

struct collector_block {
	struct slots slots;
	uint64_t data_head; /* of the current commit, for readers that want only this */
	uint64_t journal_head;
	struct hmb_commit slot[2];
};

struct writer_block {
	struct slots slots;
	uint64_t data_tail; /* of the current commit, for the collector */
	uint64_t journal_tail;
	struct hmb_writer_commit slot[2];
};

/* The sum of one block of a stream that is full. */
struct block_sum {
	uint64_t number; /* of the block: its place in the stream / block size */
	uint64_t check;
};

/* A ring of the spool, data or journal, with its sums. */
struct ring_of_bytes {
	uint8_t *bytes; /* mapped twice */
	uint64_t size;
	uint64_t block; /* bytes */
	struct block_sum *sums;
	uint64_t count; /* of sums */
};

static inline struct superblock *superblock(const struct hmb_spool *spool)
{
	return (struct superblock *)spool->map;
}

static inline struct binding_block *binding_block(const struct hmb_spool *spool)
{
	return (struct binding_block *)(spool->map + BINDING_BLOCK);
}

static inline struct collector_block *collector_block(const struct hmb_spool *spool)
{
	return (struct collector_block *)(spool->map + COLLECTOR_BLOCK);
}

static inline struct writer_block *writer_block(const struct hmb_spool *spool)
{
	return (struct writer_block *)(spool->map + WRITER_BLOCK);
}

/* A number of a slot as it is published: its complement beside it, since it chooses the slot. */
static inline uint64_t published(uint32_t generation)
{
	return (uint64_t)~generation << 32 | generation;
}

/* The largest power of two that leaves enough blocks. */
static inline uint64_t sum_block(uint64_t size)
{
	uint64_t block = SUM_BLOCK_MAX;

	while (block > SUM_BLOCK_MIN && block > size / SUM_BLOCKS_MIN)
		block /= 2;
	return block;
}

/* One more than blocks may be alive, which is one more than fit in. */
static inline uint64_t sum_count(uint64_t size)
{
	return size / sum_block(size) + 2;
}

struct ring_of_bytes spool_data(const struct hmb_spool *spool);
struct ring_of_bytes spool_journal(const struct hmb_spool *spool);
/* Go on with a sum over the ring's bytes [from, to); `store` keeps the sums of blocks that fill. */
void sum_on(const struct ring_of_bytes *ring, struct hmb_sum *sum, uint64_t from, uint64_t to,
	    int store);
/* The commit before the current one; 0 when its slot is not what it was. */
int read_previous(const struct hmb_spool *spool, struct hmb_commit *commit);
/* Whether a process died between the next commit's slot and its publication. */
int next_was_begun(const struct hmb_spool *spool);

#endif
