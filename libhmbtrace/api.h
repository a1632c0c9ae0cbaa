/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of libhmbtrace.  No preprocessor line may stand in this file:
 * cffi reads the very text that C compiles (C code includes core.h instead).
 *
 * Every function that can fail returns a negative errno.  Cursors, positions
 * and sizes are bytes; times are nanoseconds.
 */

/* ---- layout: what the C compiler made of uapi/linux/hmb_trace.h ---- */

struct hmb_layout_entry {
	const char *name; /* "hmb_ring_hdr.head", or "sizeof hmb_ring_hdr" */
	uint32_t offset;
	uint32_t size;
};

/* The i-th entry; -ENOENT past the last. */
int hmb_layout(uint32_t index, struct hmb_layout_entry *entry);

/* ---- ring: an attached region (SPEC R1, R2) ---- */

enum hmb_field {
	HMB_FIELD_NONE,
	HMB_FIELD_MAGIC,
	HMB_FIELD_VERSION,
	HMB_FIELD_RING_SIZE,
	HMB_FIELD_RECORD_AREA_OFF,
	HMB_FIELD_REGION,
};

/* Why a ring was refused: the first field that is wrong, in the order of R1. */
struct hmb_refusal {
	uint32_t field; /* enum hmb_field */
	uint32_t reserved;
	uint64_t found;
	uint64_t expected; /* ring_size: the smallest legal value; region: the bytes needed */
};

/*
 * How the host stores `tail`: a direct compare-exchange where advance is NULL,
 * else a call (read-only mappings: NVME_HMB_TRACE_ADVANCE_TAIL).  advance
 * returns 0, -ESTALE when `tail` is not `expected`, or another -errno.
 */
struct hmb_ring {
	uint8_t *base;
	uint64_t region_size;
	uint64_t ring_size;
	int (*advance)(const struct hmb_ring *ring, uint64_t expected, uint64_t new_tail);
	int32_t fd; /* for advance by ioctl, and poll(2) where can_poll is set; else -1 */
	uint32_t can_poll;
};

struct hmb_ring_view {
	uint64_t head;
	uint64_t tail;
	uint64_t reserved[3]; /* reserved1..3 */
	uint32_t flags;
	uint32_t reserved0;
	uint32_t version;
	uint32_t ring_size;
};

/* R1. Writes nothing to the region. -EINVAL fills *refusal; 0 fills *ring. */
int hmb_ring_attach(struct hmb_ring *ring, void *base, uint64_t region_size,
		    struct hmb_refusal *refusal);
/* Make `tail` go through ioctl(fd, NVME_HMB_TRACE_ADVANCE_TAIL). */
void hmb_ring_use_ioctl(struct hmb_ring *ring, int fd);
/* One look at the header, head by acquire. */
void hmb_ring_view(const struct hmb_ring *ring, struct hmb_ring_view *view);
/* R2: both multiples of 8 and head - tail <= ring_size (mod 2^64). */
int hmb_cursors_valid(uint64_t head, uint64_t tail, uint64_t ring_size);
/* Store tail if it is still expected (release): 0 or -ESTALE. */
int hmb_ring_store_tail(const struct hmb_ring *ring, uint64_t expected, uint64_t new_tail);

/* ---- events: everything about a capture that is not a record ---- */

enum hmb_event_kind {
	HMB_EV_INDEX = 1, /* a boundary; seq, ts_ns: of the record BEFORE pos; bytes: hmb_state */
	/* These three, ts_ns: of the record after. */
	HMB_EV_GAP, /* a: seq before, b: seq after, c: lost, d: missing but in the rejects */
	HMB_EV_DUPLICATE, /* a: seq */
	HMB_EV_SEQ_RESET, /* a: seq before, b: seq after */
	HMB_EV_REJECT, /* reason, cursor, length, bytes follow */
	HMB_EV_OVERFLOW, /* episode opened; a: last seq before (b: 1 if there is one) */
	HMB_EV_OVERFLOW_END, /* a: last seq before, b: first seq after, c: lost (0: unknown, >= 1) */
	HMB_EV_LOSS_BEFORE, /* OVERFLOWED found set at attach: extent unknown */
	HMB_EV_LOSS_UNKNOWN, /* R2: cursors given up; a: old tail, b: new tail */
	HMB_EV_OVERRUN, /* R7; a: head seen, b: records quarantined */
	HMB_EV_FROZEN, /* a: head */
	HMB_EV_UNFROZEN, /* a: head */
	HMB_EV_EPOCH, /* begins at pos; a: tail, b: head, c: previous tail; bytes: hmb_state */
	HMB_EV_UNKNOWN_RING_FLAGS, /* a: the bits */
	HMB_EV_RESERVED_SET, /* a: which reserved field (0..3), b: its value */
	HMB_EV_CLOCK, /* ts_ns: firmware clock, host_ns: taken when the record was seen; a: error bound */
	HMB_EV_STATE, /* written by the daemon: a: state, b: cause */
};

enum hmb_reject_reason {
	HMB_REJECT_DAMAGED = 1, /* R9: no valid record here */
	HMB_REJECT_LYING_LENGTH, /* R8: a legal length that swallows the next record */
	HMB_REJECT_UNKNOWN_FLAGS, /* R10 */
	HMB_REJECT_MARKER, /* R4: the marker as it was before it was cleaned */
	HMB_REJECT_OVERRUN, /* R7: may have been overwritten while it was copied */
};

/* 96 bytes, then `length` bytes, then zeros up to a multiple of 8. */
struct hmb_event {
	uint32_t magic; /* HMB_EVENT_MAGIC, "HMEV" */
	uint16_t kind;
	uint16_t reason;
	uint32_t length;
	uint32_t epoch;
	uint64_t pos; /* bytes of dump stream before this event */
	uint64_t cursor; /* ring cursor */
	uint64_t host_ns; /* CLOCK_REALTIME */
	uint64_t ts_ns;
	uint64_t seq;
	uint64_t a;
	uint64_t b;
	uint64_t c;
	uint64_t d;
	uint64_t reserved;
};

/* ---- collect: ring bytes to dump bytes (SPEC R3-R12) ---- */

/* Cumulative over the life of a capture. Every drop has a counter. */
struct hmb_counters {
	uint64_t records; /* in the dump, wrap markers not counted */
	uint64_t bytes; /* in the dump, wrap markers included */
	uint64_t ring_bytes; /* consumed from the ring */
	uint64_t wrap_markers; /* whole markers dumped */
	uint64_t partial_markers; /* completed to 32 bytes and dumped */
	uint64_t plain_gaps; /* fewer than 32 bytes at the lap end, no marker in them */
	uint64_t straddled; /* records that cross the ring end */
	uint64_t truncated; /* records with HMB_REC_FLAG_TRUNCATED */
	uint64_t gaps;
	uint64_t lost; /* records, rejects subtracted */
	uint64_t duplicates;
	uint64_t sequence_resets;
	uint64_t
		rejected_records; /* known one by one, or missing in seq where bytes were rejected */
	uint64_t rejected_bytes;
	uint64_t resyncs; /* R9 episodes */
	uint64_t lying_lengths; /* R8 */
	uint64_t unknown_flags; /* R10 records, kept or rejected */
	uint64_t markers_cleaned; /* R4 */
	uint64_t overruns; /* R7 */
	uint64_t overflow_episodes;
	uint64_t unknown_losses; /* episodes whose extent nobody can tell */
	uint64_t epochs; /* re-initialisations survived (R6) */
	uint64_t events_suppressed; /* counted, but not written one by one */
};

/* Wrap markers since the last record, as far as their seq goes forward (R3.4). */
struct hmb_marker_run {
	uint32_t seen; /* 1: the others mean something */
	uint32_t seq; /* of the last of them */
	uint32_t missing; /* records missing before it, if it is to be believed */
	uint32_t pad;
};

/* Where a consumer stands. Plain data: it is committed and recovered as it is. */
struct hmb_state {
	uint64_t tail; /* ring cursor of the next byte to consume */
	uint64_t pos; /* bytes of dump stream produced */
	uint64_t last_ts_ns; /* of the last record seen, not of markers */
	uint64_t first_ts_ns; /* of the first record */
	uint32_t last_seq; /* of the last good record */
	uint32_t first_seq;
	uint32_t epoch;
	uint8_t have_seq; /* last_seq means something */
	uint8_t resync; /* inside damage: its reject reason; scan for the next header (R9) */
	uint8_t have_first;
	uint8_t overflow_seen; /* OVERFLOWED as last seen; 2: not looked yet */
	uint8_t frozen_seen;
	uint8_t episode_open;
	uint8_t episode_have_seq;
	uint8_t pad0;
	uint32_t episode_seq; /* last seq before the episode */
	uint64_t episode_head; /* a record from here on without a gap: extent unknown */
	uint64_t damaged_bytes; /* rejected since the last good record */
	uint32_t ring_flags_logged; /* unknown bits already logged */
	uint32_t reserved_logged; /* reserved fields already logged, a bit each */
	uint64_t index_pos; /* pos of the last HMB_EV_INDEX */
	uint32_t anomalies; /* events since the last HMB_EV_INDEX */
	uint32_t pad1;
	struct hmb_marker_run markers;
	struct hmb_counters counters;
};

struct hmb_options {
	uint64_t index_bytes; /* an HMB_EV_INDEX after so many dump bytes; 0: never */
	uint32_t keep_unknown_flags; /* R10: 1 puts such records into the dump */
	uint32_t stop_on_corrupt; /* R9: 1 stops with -EBADMSG, tail untouched */
};

/* Two flat buffers that collect() appends to. */
struct hmb_sink {
	uint8_t *data;
	uint64_t data_cap;
	uint64_t data_len;
	uint8_t *events;
	uint64_t events_cap;
	uint64_t events_len;
};

/* Fresh state at the ring's own tail; -EILSEQ when its cursors are invalid (R2). */
int hmb_state_begin(struct hmb_state *state, const struct hmb_ring *ring);

/*
 * One pass: take what lies between state->tail and head, as far as the sink
 * has room, up to one wrap.  Stores nothing in the ring: the caller commits
 * the sink, then stores state->tail by hmb_ring_store_tail().
 * *head (may be NULL) is the head that the pass went by.  Events may be noted even if
 * nothing is consumed.  Returns the ring bytes consumed (0: nothing to do yet), or
 *   -EILSEQ   cursors invalid (R2)
 *   -ESTALE   `tail`, magic or size is not what we left there (R6); nothing taken
 *   -ENOSPC   no room in the sink for the next step
 *   -EBADMSG  damage, and stop_on_corrupt is set
 * The sink needs at least hmb_collect_min_data() / hmb_collect_min_events() bytes of room.
 */
int64_t hmb_collect(const struct hmb_ring *ring, struct hmb_state *state,
		    const struct hmb_options *options, struct hmb_sink *sink, uint64_t *head);
/* R6: keep the books, forget the sequence; the next epoch begins at tail. */
void hmb_state_next_epoch(struct hmb_state *state, uint64_t tail);

/* The least room that hmb_collect() asks of a sink, bytes. */
uint64_t hmb_collect_min_data(void);
uint64_t hmb_collect_min_events(void);
uint32_t hmb_event_magic(void);

/*
 * The capture ends here: an overflow episode still open is closed as unknown.
 * Needs room for one event; 0 or -ENOSPC.
 */
int hmb_collect_finish(struct hmb_state *state, struct hmb_sink *sink);

/* ---- spool: what survives the daemon (docs/durability.md) ---- */

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
	uint32_t phase; /* enum hmb_phase */
	uint32_t seal_cause;
	char name[256]; /* of the segment, without suffix; NUL-terminated */
	uint8_t base[512]; /* the daemon's: counters at the segment's start, opaque here */
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
/* Publish; kill_at: test hook, see struct hmb_collector. */
void hmb_spool_commit(struct hmb_spool *spool, const struct hmb_commit *commit, uint32_t kill_at);
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

/* ---- collector: the loop that runs without the GIL ---- */

enum hmb_stop {
	HMB_STOP_ASKED = 1, /* stop was set */
	HMB_STOP_DRAINED, /* once: head reached (or a wrap that waits, or FROZEN and drained) */
	HMB_STOP_FROZEN, /* FROZEN and drained */
	HMB_STOP_REINIT, /* R6: header or tail rewritten, or cursors invalid for invalid_ns */
	HMB_STOP_INVALID, /* R2: cursors stayed invalid for invalid_ns under a valid header */
	HMB_STOP_CORRUPT, /* stop_on_corrupt */
	HMB_STOP_HANGUP, /* POLLHUP: the region went away */
	HMB_STOP_DEVICE, /* the tail call failed; error holds -errno */
};

/* Instants at which the test hook ends the process (SIGKILL); 0 never. */
enum hmb_kill_at {
	HMB_KILL_NEVER,
	HMB_KILL_BEFORE_COPY,
	HMB_KILL_BEFORE_COMMIT,
	HMB_KILL_INSIDE_COMMIT, /* slot written, not yet published */
	HMB_KILL_AFTER_COMMIT, /* published, tail not yet stored */
	HMB_KILL_AFTER_TAIL,
};

struct hmb_collector {
	/* set before the run */
	struct hmb_ring ring;
	struct hmb_spool spool;
	struct hmb_options options;
	uint64_t latency_ns; /* longest wait while records come */
	uint64_t idle_ns; /* longest wait when none came for a while */
	uint64_t invalid_ns; /* R2: 100 ms */
	uint64_t batch_bytes; /* ring bytes a pass at most */
	uint32_t once;
	uint32_t keep_frozen; /* 1: FROZEN was already reported, wait for a change */
	uint32_t kill_at; /* enum hmb_kill_at */
	uint32_t kill_after; /* ... at the n-th commit from now */
	/* set while it runs */
	uint32_t stop; /* by the other side: 1 drain to the head seen next, return; 2 return now */
	uint32_t wake; /* free for the writer */
	/* published while it runs, relaxed */
	uint64_t passes;
	uint64_t ring_head;
	uint64_t max_fill; /* most unread ring bytes seen */
	uint64_t max_spool_fill;
	uint64_t stalls; /* passes that found the spool full */
	uint64_t stalled_ns;
	uint32_t ring_flags; /* as the last pass found them */
	int32_t error;
	struct hmb_state state;
};

/* Run until something that the caller must decide: enum hmb_stop. */
int hmb_collector_run(struct hmb_collector *collector);
/*
 * R6: go on in a new epoch at the ring's own tail, after the caller ran R1
 * again (collector->ring is fresh).  give_up != 0 (R2): if its cursors are
 * invalid, at head & ~7, loss unknown.  A pass that was committed while its
 * tail could not be stored is handed back first, not taken again.
 * Commits HMB_EV_EPOCH.  0, -EILSEQ (cursors invalid, or head moves),
 * -ENOSPC (no room in the journal yet: try again), -HMB_STOP_REINIT
 * (re-initialised once more meanwhile) or -HMB_STOP_DEVICE.
 */
int hmb_collector_new_epoch(struct hmb_collector *collector, int give_up);
/*
 * Begin a fresh spool at the ring's own tail: fills collector->state and makes
 * the first commit.  -EILSEQ when the cursors are invalid.
 */
int hmb_collector_begin(struct hmb_collector *collector);
/* Go on from a spool that continues this ring (hmb_spool_continues): loads the state. */
void hmb_collector_resume(struct hmb_collector *collector);
/* The capture ends: close what is open (hmb_collect_finish) and commit. 0 or -ENOSPC. */
int hmb_collector_finish(struct hmb_collector *collector);

/* ---- walk: dump bytes to columns and statistics (offline) ---- */

enum hmb_walk_end {
	HMB_WALK_DONE, /* every byte was used */
	HMB_WALK_FULL, /* columns or breaks are full: take them, call again with the rest */
	HMB_WALK_SHORT_HEADER, /* fewer than 32 bytes are left */
	HMB_WALK_SHORT_PAYLOAD, /* the record goes on past the end */
	HMB_WALK_BAD_MAGIC,
	HMB_WALK_BAD_LENGTH, /* payload_len > 4064 */
};

/* One row a record. Arrays of the caller, `cap` entries each. */
struct hmb_columns {
	uint64_t *offset; /* in the dump, bytes */
	uint64_t *ts_ns;
	uint32_t *seq;
	uint16_t *opcode;
	uint16_t *payload_len; /* as used: 0 for a wrap marker */
	uint8_t *cpu;
	uint8_t *flags;
	uint64_t cap;
	uint64_t len;
	uint32_t with_markers; /* 1: wrap markers get rows too */
	uint32_t pad;
};

/* Where the sequence breaks (SPEC R12). */
struct hmb_break {
	uint64_t offset; /* of the record after the break */
	uint64_t ts_ns; /* its time */
	uint64_t lost; /* records; 0 unless kind is HMB_EV_GAP */
	uint32_t seq_before;
	uint32_t seq_after;
	uint32_t kind; /* HMB_EV_GAP, HMB_EV_DUPLICATE or HMB_EV_SEQ_RESET */
	uint32_t pad;
};

struct hmb_breaks {
	struct hmb_break *item;
	uint64_t cap;
	uint64_t len;
};

/* Histograms; a log2 bucket i > 0 holds values of [2^(i-1), 2^i), bucket 0 holds 0. */
struct hmb_tally {
	uint64_t *opcode_records; /* 65536 */
	uint64_t *opcode_bytes; /* 65536, payload */
	uint64_t *cpu_records; /* 256 */
	uint64_t *payload_log2; /* 65 */
	uint64_t *interval_log2; /* 65, ns between neighbours that do not go backwards */
};

/* Where a walk stands, and what it has seen. All zero at the start. */
struct hmb_walk {
	uint64_t offset; /* dump offset of the next byte to look at */
	uint64_t records; /* wrap markers not counted */
	uint64_t wrap_markers;
	uint64_t payload_bytes;
	uint64_t truncated;
	uint64_t unknown_flags;
	uint64_t gaps;
	uint64_t lost;
	uint64_t duplicates;
	uint64_t sequence_resets;
	uint64_t clock_steps_back; /* records earlier than the one before */
	uint64_t first_ts_ns;
	uint64_t last_ts_ns;
	uint64_t min_ts_ns;
	uint64_t max_ts_ns;
	uint32_t first_seq; /* of records */
	uint32_t last_record_seq;
	uint32_t last_seq; /* of the last record of this sequence */
	uint32_t have_seq;
	struct hmb_marker_run markers;
};

/*
 * Walk n dump bytes that begin at walk->offset, from record to record.  Any of
 * columns, breaks and tally may be NULL.  Returns enum hmb_walk_end;
 * walk->offset is then that of the first byte not used.
 */
int hmb_walk(struct hmb_walk *walk, const uint8_t *data, uint64_t n, struct hmb_columns *columns,
	     struct hmb_breaks *breaks, const struct hmb_tally *tally);

/*
 * Copy the field at record offset `at` (32 is the payload's begin), `width` bytes, of n records
 * to `out`, back to back.  offsets are those of the dump, base is the offset of data[0].
 */
void hmb_gather(const uint8_t *data, uint64_t base, const uint64_t *offsets, uint64_t n,
		uint32_t at, uint32_t width, uint8_t *out);

/*
 * Copy n whole records (header, payload, padding) to `out`, back to back; returns the bytes.
 * `out` must have room for all of them.
 */
uint64_t hmb_copy_records(const uint8_t *data, uint64_t base, const uint64_t *offsets, uint64_t n,
			  uint8_t *out);

/* Copy the payloads of n records to `out`, back to back; ends[i] is where the i-th ends in it. */
void hmb_gather_payloads(const uint8_t *data, uint64_t base, const uint64_t *offsets,
			 const uint16_t *lengths, uint64_t n, uint8_t *out, int32_t *ends);

/* ---- render: records to lines of text (decode, CSV, JSONL) ---- */

enum hmb_put {
	HMB_PUT_TEXT, /* text, as it is */
	HMB_PUT_UINT, /* integers: base, flags, min_width, labels */
	HMB_PUT_INT,
	HMB_PUT_FLOAT, /* width 4 or 8; precision < 0: shortest that reads back the same */
	HMB_PUT_CHARS, /* up to the first NUL, escaped */
	HMB_PUT_HEX, /* bytes; width 0: the whole payload */
	HMB_PUT_SECONDS, /* times[row] as seconds with nine decimals */
	HMB_PUT_ISO, /* times[row] as UTC, ns since 1970 */
	HMB_PUT_NS, /* times[row] as it is */
	HMB_PUT_OFFSET, /* of the record in its dump */
	HMB_PUT_ROW_TEXT, /* row_text[row_begin[row] .. row_begin[row + 1]] as it is */
	HMB_PUT_VALUE, /* values[at * n + row]; INT64_MIN: `text` instead */
	HMB_PUT_FILE, /* file, as it is */
	HMB_PUT_MARK, /* nothing: the text begins here that HMB_PUT_GUARD looks at */
	HMB_PUT_GUARD, /* an apostrophe before that text if it looks like a formula */
};

enum hmb_escape {
	HMB_ESCAPE_TEXT, /* control characters and bad UTF-8 become readable */
	HMB_ESCAPE_JSON, /* inside quotes, which the program puts */
	HMB_ESCAPE_CSV, /* quotes doubled; the program puts the outer ones */
};

enum hmb_cell_flags {
	HMB_CELL_ALT = 1, /* 0x, 0o, 0b before the digits */
	HMB_CELL_ZERO = 2, /* fill with zeros, not spaces */
	HMB_CELL_UPPER = 4,
	HMB_CELL_LEFT = 8, /* fill behind, not before */
	HMB_CELL_JSON_FLOAT = 16, /* null for what JSON has no number for */
	HMB_CELL_UNSIGNED = 64, /* times[row] has no sign */
	HMB_CELL_HEX_MARK = 32, /* hex: before the digits, so that they are read as no number */
};

struct hmb_label {
	int64_t value;
	const char *text;
	uint32_t length;
	uint32_t pad;
};

/* One piece of a line. */
struct hmb_cell {
	uint32_t put; /* enum hmb_put */
	uint32_t at; /* offset in the record, bytes; 32 is the payload's begin */
	uint32_t width; /* of the field, bytes */
	uint32_t needs; /* payload bytes without which `text` is put instead */
	uint32_t base; /* 10, 16, 8 or 2 */
	uint32_t flags; /* enum hmb_cell_flags */
	uint32_t min_width; /* characters */
	int32_t precision;
	uint32_t escape; /* enum hmb_escape */
	char style; /* floats: f, e or g */
	char pad[3];
	const char *text;
	uint32_t text_length;
	uint32_t label_count;
	const struct hmb_label *labels; /* a value that has one is put as its text */
};

struct hmb_program {
	const struct hmb_cell *cells;
	uint32_t count;
	uint32_t pad;
};

struct hmb_render {
	const uint8_t *data; /* of the batch */
	uint64_t base; /* dump offset of data[0] */
	const uint64_t *offsets; /* of the records, n of them */
	uint64_t n;
	const int64_t *times; /* n, for the time cells */
	const uint16_t *program_of; /* 65536: opcode to program */
	const struct hmb_program *programs;
	const char *row_text;
	const uint64_t *row_begin; /* n + 1 */
	uint64_t next; /* row to begin with; on return the first not rendered */
	char *out;
	uint64_t out_cap;
	uint64_t out_len; /* bytes written by this call */
	uint32_t trim; /* 1: no spaces before a line's end */
	uint32_t file_length;
	const int64_t *values; /* n for each column of HMB_PUT_VALUE, column by column */
	const char *file; /* for HMB_PUT_FILE */
};

/* Render whole lines until all rows are done or `out` is full; 0, or -ENOSPC if not even one fits. */
int hmb_render(struct hmb_render *render);

/* ---- fnv: FNV-1a, 64 bit ---- */

/* Hash n bytes; pass hmb_fnv1a_64_basis() first, then the last result, to go on. */
uint64_t hmb_fnv1a_64(const void *data, uint64_t n, uint64_t state);
/* The same by the byte loop of the texts: what the fast variants are tested against. */
uint64_t hmb_fnv1a_64_plain(const void *data, uint64_t n, uint64_t state);
uint64_t hmb_fnv1a_64_basis(void);

/* ---- pccx: records to events and back, pairing of begins and ends ---- */

enum hmb_rule_kind {
	HMB_RULE_INSTANT,
	HMB_RULE_COMPLETE, /* carries its own duration */
	HMB_RULE_BEGIN,
	HMB_RULE_END,
};

/* Where an integer stands in a payload. */
struct hmb_payload_int {
	uint16_t offset;
	uint8_t size; /* 1, 2, 4, 8; 0: nowhere */
	uint8_t is_signed;
};

/* What the catalog says about one opcode. */
struct hmb_rule {
	uint8_t kind; /* enum hmb_rule_kind */
	uint8_t event_type; /* flatbuf event_type_id */
	uint16_t pair; /* begin and end of a pair share it */
	struct hmb_payload_int key; /* what pairs a begin with its end; size 0: the cpu */
	struct hmb_payload_int duration;
	uint32_t text_offset; /* bincode's event_type and api_name, ready to copy */
	uint32_t text_length;
	uint32_t cycles_div; /* duration in cycles = value * cycles_mul / cycles_div */
	uint64_t cycles_mul;
	uint64_t ns_mul; /* duration in ns = value * ns_mul / ns_div */
	uint64_t ns_div;
};

/* A begin that waits for its end. */
struct hmb_open {
	uint64_t key;
	uint64_t ts_ns;
	uint64_t ref; /* payload position (events) or row (pairing): ever rising */
	uint32_t pair; /* rule's pair + 1; 0: free slot */
	uint16_t opcode;
	uint8_t cpu;
	uint8_t reserved;
	uint64_t piece; /* how many pieces began before it: gaps, epochs and clock steps end one */
};

/* Hash table of begins; the caller owns the slots, zeroed at first. */
struct hmb_open_table {
	struct hmb_open *slots;
	uint64_t size; /* power of two */
	uint64_t used;
	uint64_t seed; /* of the hash: keys are payload, and must not be able to aim at one slot */
	uint64_t piece; /* the one that is being read */
};

/* Copy the begins with ref >= min_ref into an empty table; -ENOSPC if it is too small. */
int hmb_open_rehash(const struct hmb_open_table *from, struct hmb_open_table *to, uint64_t min_ref);

struct hmb_rules {
	const uint32_t *index; /* by opcode, 65536 of them: which rule */
	const struct hmb_rule *rules; /* rule 0: opcodes that the catalog does not know */
	const uint8_t *texts;
};

/* A duration that became known after its event had left the buffer. */
struct hmb_patch {
	uint64_t position; /* payload position of the 8 bytes */
	uint64_t duration;
};

enum hmb_encoding {
	HMB_ENCODING_FLATBUF,
	HMB_ENCODING_BINCODE,
};

struct hmb_event_maker {
	struct hmb_rules rules;
	struct hmb_open_table open;
	uint64_t clock_mhz;
	uint64_t position; /* payload position of the next event */
	uint64_t records; /* wrap markers not counted */
	uint64_t markers;
	uint64_t events;
	uint64_t pairs;
	uint64_t unmatched_begins; /* superseded; those still open are in the table */
	uint64_t unmatched_ends;
	uint64_t uncertain; /* ends whose begin stands in another piece */
	uint64_t short_payloads; /* too short for the key or duration field */
	uint64_t saturated; /* times beyond 64 bits of cycles */
	uint64_t invalid; /* durations that are none: negative, all ones, beyond 64 bits of ns */
	uint64_t cycles; /* largest start + duration */
	uint32_t encoding; /* enum hmb_encoding */
	uint32_t cores; /* largest cpu + 1 */
};

/* Buffers of one step. */
struct hmb_step {
	const uint8_t *input; /* dump bytes, from the start of a record */
	uint64_t input_len;
	uint64_t consumed;
	uint8_t *out;
	uint64_t out_cap;
	uint64_t out_len;
	struct hmb_patch *patches;
	uint64_t patches_cap;
	uint64_t patches_len;
	const uint64_t *cuts; /* where in the input a new piece begins, in order */
	uint64_t cuts_len;
	uint64_t cuts_done;
};

enum hmb_step_end {
	HMB_STEP_INPUT, /* all whole records consumed */
	HMB_STEP_OUTPUT, /* out or patches full */
	HMB_STEP_TABLE, /* the table of open begins must grow */
};

/* Dump records to events (SPEC P6). enum hmb_step_end, or -EBADMSG: no record at input + consumed. */
int hmb_make_events(struct hmb_event_maker *maker, struct hmb_step *step);

/* 24 bytes, packed: what flatbuf has on disk. */
struct hmb_flat_event {
	uint8_t core_id[4];
	uint8_t start_cycle[8];
	uint8_t duration[8];
	uint8_t event_type_id[4];
};

/* A bincode event whose strings are more than a known event_type. Offsets into the payload. */
struct hmb_event_strings {
	uint64_t type_offset;
	uint64_t type_length;
	uint64_t api_offset;
	uint64_t api_length;
	uint32_t row;
	uint32_t has_api;
	uint32_t known_type;
	uint32_t pad;
};

enum hmb_bincode_fault {
	HMB_FAULT_NONE,
	HMB_FAULT_TORN, /* value: bytes needed */
	HMB_FAULT_TYPE_LENGTH, /* value: length found */
	HMB_FAULT_API_LENGTH,
	HMB_FAULT_TYPE_UTF8,
	HMB_FAULT_API_UTF8,
	HMB_FAULT_TAG, /* value: tag found */
};

struct hmb_bincode {
	uint64_t position; /* in the payload; advanced */
	uint64_t left; /* events still to come; counted down */
	uint64_t fault_offset;
	uint64_t fault_value;
	uint32_t fault; /* enum hmb_bincode_fault */
	uint32_t last; /* 0: go on with the next call */
	uint64_t strings_len; /* filled by this call */
};

/* event_type_id of events whose event_type is none that is known. */
uint32_t hmb_event_type_other(void);
/*
 * Up to cap events from payload[0..n) at bincode->position. Returns their number, or -EBADMSG
 * (fault says what, events before it are counted in *done). strings may be NULL, else cap of them.
 */
int64_t hmb_bincode_read(struct hmb_bincode *bincode, const uint8_t *payload, uint64_t n,
			 struct hmb_flat_event *events, uint64_t cap,
			 struct hmb_event_strings *strings, uint64_t *done);
/* Events to bincode without api names; out must hold n * hmb_bincode_most() bytes. Returns bytes. */
uint64_t hmb_bincode_write(const struct hmb_flat_event *events, uint64_t n, uint8_t *out);
uint64_t hmb_bincode_most(void);

/* One sorted run that is merged; the caller refills it. */
struct hmb_run {
	const struct hmb_flat_event *next;
	const struct hmb_flat_event *end;
	uint64_t more; /* events of the run that are not in memory yet */
};

/*
 * Merge up to cap events by start_cycle, ties by run. Stops when a run must be refilled
 * (*refill: its index, else count). order: scratch for count numbers. Returns events written.
 */
uint64_t hmb_events_merge(struct hmb_run *runs, uint64_t count, uint64_t *order,
			  struct hmb_flat_event *out, uint64_t cap, uint64_t *refill);
/* Events until the first that starts before its predecessor; n if they are sorted. */
uint64_t hmb_events_sorted(const struct hmb_flat_event *events, uint64_t n);
/* Sort by start_cycle, stable; scratch holds n / 2 events. Fast where hardly anything is amiss. */
void hmb_events_sort(struct hmb_flat_event *events, uint64_t n, struct hmb_flat_event *scratch);
/* Where an open begin's event goes; scratch of hmb_events_settle(). */
struct hmb_place {
	uint64_t start;
	uint64_t ref;
	struct hmb_open *slot;
};

/*
 * Sort n events that stand at payload position base, and let the begins that still wait
 * follow their events.  scratch: n / 2 events; places: open->used of them.
 */
void hmb_events_settle(struct hmb_open_table *open, uint64_t base, struct hmb_flat_event *events,
		       uint64_t n, struct hmb_flat_event *scratch, struct hmb_place *places);
/* First row whose core_id is `word`, from `row` on; n if there is none. */
uint64_t hmb_events_find_core(const struct hmb_flat_event *events, uint64_t row, uint64_t n,
			      uint32_t word);

/* A begin and its end. */
struct hmb_match {
	uint64_t begin_row;
	uint64_t end_row;
	uint64_t begin_ts_ns;
	uint64_t end_ts_ns;
	uint64_t key;
	uint16_t begin_opcode;
	uint16_t end_opcode;
	uint8_t begin_cpu;
	uint8_t end_cpu;
	uint16_t pair;
	uint64_t uncertain; /* not 0: they stand in different pieces */
};

/* A begin without an end, or an end without a begin. */
struct hmb_single {
	uint64_t row;
	uint64_t ts_ns;
	uint64_t key;
	uint16_t opcode;
	uint8_t cpu;
	uint8_t is_end;
	uint32_t pair;
};

/* Columns of a batch. */
struct hmb_pair_rows {
	const uint8_t *payloads; /* payload of row i begins at payloads + payload_at[i] */
	const uint64_t *payload_at;
	const uint64_t *ts_ns;
	const uint16_t *opcode;
	const uint8_t *cpu;
	const uint8_t *flags;
	const uint16_t *payload_len;
	uint64_t rows;
	uint64_t done; /* rows taken */
	uint64_t row_base; /* number of row 0 in the whole stream */
	const uint64_t *cuts; /* rows before which a new piece begins, in order */
	uint64_t cuts_len;
	uint64_t cuts_done;
	struct hmb_match *matches; /* room for every row */
	uint64_t matches_len;
	struct hmb_single *singles; /* room for every row */
	uint64_t singles_len;
};

/*
 * Durations that records carry themselves, in ns: out[i] = values[i] * mul / div.  Returns how many
 * are none, and makes valid[i] 0 for those: negative, 2^64 - 1 ("not known yet"), beyond 64 bits.
 * values: the field's bits; size: its bytes.
 */
uint64_t hmb_durations_ns(const uint64_t *values, uint64_t n, uint32_t size, uint32_t is_signed,
			  uint64_t mul, uint64_t div, uint64_t *out, uint8_t *valid);

/* 0: all rows done; HMB_STEP_TABLE: the table must grow first. */
int hmb_pair_rows(const struct hmb_rules *rules, struct hmb_open_table *open,
		  struct hmb_pair_rows *batch);
