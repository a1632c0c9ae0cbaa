/* SPDX-License-Identifier: Apache-2.0 */
/* What survives the daemon (docs/durability.md). */

/* From the collector: values that belong together. */
struct hmb_commit {
	uint64_t data_head; /* spool positions: bytes ever appended */
	uint64_t journal_head;
	uint64_t tail_before; /* device tail that this commit found */
	uint64_t tail_after; /* device tail that it is about to store */
	uint64_t head_seen; /* device head that it was collected under */
	struct hmb_state state;
};

/* From the writer. */
struct hmb_writer_commit {
	uint64_t data_tail; /* spool bytes that are in the segment file */
	uint64_t journal_tail; /* journal bytes that are in the segment's files */
	uint64_t segment; /* number */
	uint64_t segment_pos; /* data position where the segment begins */
	uint64_t file_offset; /* bytes of the segment that the file holds */
	uint64_t rejects_offset; /* bytes of the rejects file */
	uint64_t events_offset; /* bytes of the event log */
	uint64_t started_ns; /* CLOCK_REALTIME at the segment's start */
	uint64_t planned; /* the last position whose events are all in the segment's files */
	uint32_t epoch; /* of the segment */
	uint32_t phase; /* enum hmb_phase */
	uint32_t seal_cause;
	uint32_t reserved;
	struct hmb_counters planned_counters; /* what had been counted at `planned` */
	struct hmb_counters base_counters; /* ... at the segment's start */
	char name[256]; /* of the segment, without suffix; NUL-terminated */
};

enum hmb_phase {
	HMB_PHASE_IDLE, /* no segment open */
	HMB_PHASE_WRITING,
	HMB_PHASE_SEALING,
};

struct hmb_spool {
	uint8_t *map; /* header, then journal twice, then data twice */
	uint64_t map_size;
	uint8_t *data;
	uint64_t data_size; /* bytes, multiple of the page size */
	uint8_t *journal;
	uint64_t journal_size;
};

/* Bytes of the file that holds a spool of these sizes; sizes are multiples of the page size. */
uint64_t hmb_spool_file_size(uint64_t data_size, uint64_t journal_size);
/*
 * Map the spool in fd (already sized and preallocated); create != 0 writes a
 * fresh header with this identity (at most 255 bytes, which device and which ring).
 * Opening: -ENODATA when it was never begun (nothing was collected), -EPROTONOSUPPORT
 * when it is another version's, -EBADMSG when it is damaged.
 */
int hmb_spool_map(struct hmb_spool *spool, int fd, uint64_t file_size, uint64_t data_size,
		  uint64_t journal_size, const char *identity, int create);
void hmb_spool_unmap(struct hmb_spool *spool);
const char *hmb_spool_identity(const struct hmb_spool *spool);
/* Another ring took the old one's place (R6), and nothing of it was collected yet. */
void hmb_spool_set_identity(struct hmb_spool *spool, const char *identity);

/* The last commit, consistent even while the other side goes on. */
void hmb_spool_read_commit(const struct hmb_spool *spool, struct hmb_commit *commit);
void hmb_spool_read_writer(const struct hmb_spool *spool, struct hmb_writer_commit *commit);
/* Publish. */
void hmb_spool_commit(struct hmb_spool *spool, const struct hmb_commit *commit);
void hmb_spool_commit_writer(struct hmb_spool *spool, const struct hmb_writer_commit *commit);
/* data_head of the last commit, one acquire load. */
uint64_t hmb_spool_data_head(const struct hmb_spool *spool);
uint64_t hmb_spool_journal_head(const struct hmb_spool *spool);
/* The same of the writer's last commit: what it has freed. */
uint64_t hmb_spool_data_tail(const struct hmb_spool *spool);
uint64_t hmb_spool_journal_tail(const struct hmb_spool *spool);

/*
 * The writer waits until data_head - pos >= want or a quarter of the journal lies
 * beyond journal_pos, at most timeout_ns; `wake` non-zero ends it early.  Returns data_head - pos.
 */
uint64_t hmb_spool_wait(const struct hmb_spool *spool, uint64_t pos, uint64_t want,
			uint64_t journal_pos, uint64_t timeout_ns, const uint32_t *wake);

/* Copy n bytes at data position pos (through the double mapping), for callers without the GIL. */
void hmb_spool_copy(const struct hmb_spool *spool, void *to, uint64_t pos, uint64_t n);
/* The same into a buffer that a device reads next, not this CPU: past the caches. */
void hmb_spool_stream(const struct hmb_spool *spool, void *to, uint64_t pos, uint64_t n);

/*
 * Does the committed spool continue this ring?  1: yes, tail is already "after";
 * 2: yes, tail is "before" and the ring's bytes are the spool's (store tail_after);
 * 0: no, the ring was re-initialised meanwhile.
 */
int hmb_spool_continues(const struct hmb_spool *spool, const struct hmb_ring *ring,
			const struct hmb_options *options);
