/* SPDX-License-Identifier: Apache-2.0 */
/* Records to lines of text (decode, CSV, JSONL). */

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
	uint32_t pad;
};

/* Render whole lines until all rows are done or `out` is full; 0, or -ENOSPC if not even one fits. */
int hmb_render(struct hmb_render *render);
