// SPDX-License-Identifier: Apache-2.0
/* Records to lines of text by small programs, one for each opcode: decode, CSV, JSONL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define NS_PER_S 1000000000
#define S_PER_DAY 86400
#define MAX_DIGITS 72 /* 64 binary ones, a prefix and a sign */
#define MAX_FLOAT 512 /* %.100f of the largest double */
#define MAX_PRECISION 100
#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

static const char HEX[] = "0123456789abcdef";
static const char HEX_UPPER[] = "0123456789ABCDEF";

struct writer {
	char *at;
	char *end;
	char *mark; /* where the text began that HMB_PUT_GUARD looks at */
	int full;
};

/* One record while its line is made. */
struct row {
	const struct hmb_render *render;
	uint64_t index;
	const uint8_t *record;
	uint32_t payload_len;
};

static void put(struct writer *w, const char *text, uint64_t length)
{
	if ((uint64_t)(w->end - w->at) < length) {
		w->full = 1;
		return;
	}
	memcpy(w->at, text, length);
	w->at += length;
}

static void fill(struct writer *w, char with, uint64_t count)
{
	if ((uint64_t)(w->end - w->at) < count) {
		w->full = 1;
		return;
	}
	memset(w->at, with, count);
	w->at += count;
}

/* Text in a field of min_width characters. */
static void put_aligned(struct writer *w, const struct hmb_cell *cell, const char *text,
			uint64_t length)
{
	uint64_t space = length < cell->min_width ? cell->min_width - length : 0;

	if (!(cell->flags & HMB_CELL_LEFT))
		fill(w, ' ', space);
	put(w, text, length);
	if (cell->flags & HMB_CELL_LEFT)
		fill(w, ' ', space);
}

static char *decimal(char *end, uint64_t value)
{
	do {
		*--end = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	return end;
}

static char *digits(char *end, uint64_t value, const struct hmb_cell *cell)
{
	const char *set = cell->flags & HMB_CELL_UPPER ? HEX_UPPER : HEX;
	uint32_t shift = cell->base == 16 ? 4 : cell->base == 8 ? 3 : 1;

	if (cell->base == 10)
		return decimal(end, value);
	do {
		*--end = set[value & (cell->base - 1)];
		value >>= shift;
	} while (value);
	return end;
}

static uint64_t prefix(char *to, int negative, const struct hmb_cell *cell)
{
	uint64_t length = 0;

	if (negative)
		to[length++] = '-';
	if (!(cell->flags & HMB_CELL_ALT) || cell->base == 10)
		return length;
	to[length++] = '0';
	to[length++] = cell->base == 16	 ? (cell->flags & HMB_CELL_UPPER ? 'X' : 'x')
		       : cell->base == 8 ? 'o'
					 : 'b';
	return length;
}

static void put_number(struct writer *w, const struct hmb_cell *cell, uint64_t value, int negative)
{
	char buffer[MAX_DIGITS];
	char *end = buffer + sizeof(buffer);
	char *from = digits(end, value, cell);
	char head[4];
	uint64_t head_length = prefix(head, negative, cell);
	uint64_t length = (uint64_t)(end - from);

	if (cell->flags & HMB_CELL_ZERO) {
		put(w, head, head_length);
		if (length + head_length < cell->min_width)
			fill(w, '0', cell->min_width - length - head_length);
		put(w, from, length);
		return;
	}
	from -= head_length;
	memcpy(from, head, head_length);
	put_aligned(w, cell, from, length + head_length);
}

static uint64_t load(const uint8_t *from, uint32_t width)
{
	uint64_t value = 0;

	switch (width) { /* widths known at compile time become single loads */
	case 1:
		return *from;
	case 2:
		memcpy(&value, from, 2);
		return value;
	case 4:
		memcpy(&value, from, 4);
		return value;
	default:
		memcpy(&value, from, 8);
		return value;
	}
}

static int64_t load_signed(const uint8_t *from, uint32_t width)
{
	uint32_t unused = 64 - 8 * width;

	return (int64_t)(load(from, width) << unused) >> unused;
}

static int put_label(struct writer *w, const struct hmb_cell *cell, int64_t value)
{
	for (uint32_t i = 0; i < cell->label_count; i++) {
		if (cell->labels[i].value == value) {
			put_aligned(w, cell, cell->labels[i].text, cell->labels[i].length);
			return 1;
		}
	}
	return 0;
}

static void put_uint(struct writer *w, const struct hmb_cell *cell, const uint8_t *field)
{
	uint64_t value = load(field, cell->width);

	if (!put_label(w, cell, (int64_t)value))
		put_number(w, cell, value, 0);
}

static void put_int(struct writer *w, const struct hmb_cell *cell, const uint8_t *field)
{
	int64_t value = load_signed(field, cell->width);

	if (!put_label(w, cell, value))
		put_number(w, cell, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0);
}

static double load_float(const uint8_t *from, uint32_t width)
{
	float narrow;
	double wide;

	if (width == sizeof(narrow)) {
		memcpy(&narrow, from, sizeof(narrow));
		return narrow;
	}
	memcpy(&wide, from, sizeof(wide));
	return wide;
}

static int reads_back(const char *text, double value, uint32_t width)
{
	return width == sizeof(float) ? strtof(text, NULL) == (float)value
				      : strtod(text, NULL) == value;
}

/* The fewest digits that read back as the same number. */
static int shortest(char *to, size_t size, double value, uint32_t width)
{
	int most = width == sizeof(float) ? 9 : 17;
	int length = 0;

	for (int precision = most == 9 ? 6 : 15; precision <= most; precision++) {
		length = snprintf(to, size, "%.*g", precision, value);
		if (reads_back(to, value, width))
			break;
	}
	if (strspn(to, "-0123456789") == (size_t)length) {
		memcpy(to + length, ".0", 3); /* a float stays one when it is read back */
		length += 2;
	}
	return length;
}

static int is_number(double value)
{
	return value - value == 0; /* neither infinite nor NaN */
}

static void put_float(struct writer *w, const struct hmb_cell *cell, const uint8_t *field)
{
	char text[MAX_FLOAT];
	double value = load_float(field, cell->width);
	int precision = HMB_MIN(cell->precision, MAX_PRECISION);
	int length;

	if (!is_number(value) && cell->flags & HMB_CELL_JSON_FLOAT)
		length = snprintf(text, sizeof(text), "null");
	else if (!is_number(value))
		length = snprintf(text, sizeof(text), "%s",
				  value != value ? "nan"
				  : value > 0	 ? "inf"
						 : "-inf");
	else if (cell->precision < 0)
		length = shortest(text, sizeof(text), value, cell->width);
	else if (cell->style == 'f')
		length = snprintf(text, sizeof(text), "%.*f", precision, value);
	else if (cell->style == 'e')
		length = snprintf(text, sizeof(text), "%.*e", precision, value);
	else
		length = snprintf(text, sizeof(text), "%.*g", precision, value);
	put_aligned(w, cell, text, (uint64_t)length);
}

/* Length of the valid UTF-8 sequence at text, or 0. */
static uint64_t utf8_length(const uint8_t *text, uint64_t left)
{
	uint8_t first = text[0];
	uint64_t length = first < 0x80	 ? 1
			  : first < 0xc2 ? 0
			  : first < 0xe0 ? 2
			  : first < 0xf0 ? 3
			  : first < 0xf5 ? 4
					 : 0;

	if (length == 0 || length > left)
		return 0;
	for (uint64_t i = 1; i < length; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
	}
	if ((first == 0xe0 && text[1] < 0xa0) || (first == 0xed && text[1] > 0x9f) ||
	    (first == 0xf0 && text[1] < 0x90) || (first == 0xf4 && text[1] > 0x8f))
		return 0;
	return length;
}

/* Characters that are shown and not obeyed, ASCII ones aside: src/hmb_trace/escapes.py. */
static const struct {
	uint32_t first, last;
} UNSAFE[] = {
	{ 0x80, 0x9f },	      { 0xad, 0xad },	  { 0x61c, 0x61c },   { 0x180e, 0x180e },
	{ 0x200b, 0x200f },   { 0x2028, 0x202e }, { 0x2060, 0x206f }, { 0x3164, 0x3164 },
	{ 0xfeff, 0xfeff },   { 0xffa0, 0xffa0 }, { 0xfff9, 0xfffb }, { 0x1d173, 0x1d17a },
	{ 0xe0000, 0xe007f },
};

/* The code point of a valid sequence of 2 to 4 bytes. */
static uint32_t code_point(const uint8_t *text, uint64_t length)
{
	uint32_t code = text[0] & (0xffu >> (length + 1));

	for (uint64_t i = 1; i < length; i++)
		code = code << 6 | (text[i] & 0x3f);
	return code;
}

static int is_unsafe(uint32_t code)
{
	for (uint32_t i = 0; i < sizeof(UNSAFE) / sizeof(UNSAFE[0]); i++) {
		if (code <= UNSAFE[i].last)
			return code >= UNSAFE[i].first;
	}
	return 0;
}

static void put_escaped(struct writer *w, uint32_t code, uint32_t escape)
{
	char text[16];
	int length;

	if (escape == HMB_ESCAPE_JSON && code > 0xffff)
		length = snprintf(text, sizeof(text), "\\u%04x\\u%04x",
				  0xd800 + ((code - 0x10000) >> 10), 0xdc00 + (code & 0x3ff));
	else if (code > 0xffff)
		length = snprintf(text, sizeof(text), "\\U%08x", code);
	else if (escape == HMB_ESCAPE_JSON || code > 0xff)
		length = snprintf(text, sizeof(text), "\\u%04x", code);
	else
		length = snprintf(text, sizeof(text), "\\x%02x", code);
	put(w, text, (uint64_t)length);
}

static void put_ascii(struct writer *w, uint8_t byte, uint32_t escape)
{
	if (byte < 0x20 || byte == 0x7f)
		put_escaped(w, byte, escape);
	else if (escape == HMB_ESCAPE_JSON && (byte == '"' || byte == '\\'))
		put(w, byte == '"' ? "\\\"" : "\\\\", 2);
	else if (escape == HMB_ESCAPE_CSV && byte == '"')
		put(w, "\"\"", 2);
	else
		put(w, (const char *)&byte, 1);
}

static void put_wide(struct writer *w, const uint8_t *text, uint64_t length, uint32_t escape)
{
	uint32_t code = code_point(text, length);

	if (is_unsafe(code))
		put_escaped(w, code, escape);
	else
		put(w, (const char *)text, length);
}

static void put_chars(struct writer *w, const struct hmb_cell *cell, const uint8_t *text)
{
	uint64_t length = strnlen((const char *)text, cell->width);
	uint64_t space = length < cell->min_width ? cell->min_width - length : 0;

	for (uint64_t i = 0; i < length;) {
		uint64_t step = utf8_length(text + i, length - i);

		if (step == 0)
			put(w, REPLACEMENT, sizeof(REPLACEMENT) - 1);
		else if (step == 1)
			put_ascii(w, text[i], cell->escape);
		else
			put_wide(w, text + i, step, cell->escape);
		i += step ? step : 1;
	}
	fill(w, ' ', space);
}

static void put_hex(struct writer *w, const uint8_t *bytes, uint64_t length)
{
	if ((uint64_t)(w->end - w->at) < 2 * length) {
		w->full = 1;
		return;
	}
	for (uint64_t i = 0; i < length; i++) {
		*w->at++ = HEX[bytes[i] >> 4];
		*w->at++ = HEX[bytes[i] & 15];
	}
}

/* Exactly `width` digits. */
static char *fixed(char *to, uint64_t value, int width)
{
	for (int i = width - 1; i >= 0; i--) {
		to[i] = (char)('0' + value % 10);
		value /= 10;
	}
	return to + width;
}

static void put_seconds(struct writer *w, const struct hmb_cell *cell, int64_t ns)
{
	uint64_t size = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
	char text[MAX_DIGITS];
	char *point = text + 40;
	char *from = decimal(point, size / NS_PER_S);

	*point = '.';
	fixed(point + 1, size % NS_PER_S, 9);
	if (ns < 0)
		*--from = '-';
	put_aligned(w, cell, from, (uint64_t)(point + 10 - from));
}

/* Days since 1970 to year, month, day (proleptic Gregorian; eras of 400 years from March 1st). */
static void civil(int64_t days, int64_t *year, uint64_t *month, uint64_t *day)
{
	int64_t shifted = days + 719468;
	int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
	uint64_t of_era = (uint64_t)(shifted - era * 146097);
	uint64_t of_era_year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	uint64_t of_year = of_era - (365 * of_era_year + of_era_year / 4 - of_era_year / 100);
	uint64_t shifted_month = (5 * of_year + 2) / 153;

	*day = of_year - (153 * shifted_month + 2) / 5 + 1;
	*month = shifted_month < 10 ? shifted_month + 3 : shifted_month - 9;
	*year = (int64_t)of_era_year + era * 400 + (*month <= 2);
}

static void put_iso(struct writer *w, int64_t ns)
{
	int64_t seconds = ns / NS_PER_S - (ns % NS_PER_S < 0);
	uint64_t fraction = (uint64_t)(ns - seconds * NS_PER_S);
	int64_t days = seconds / S_PER_DAY - (seconds % S_PER_DAY < 0);
	uint64_t of_day = (uint64_t)(seconds - days * S_PER_DAY);
	uint64_t month, day;
	int64_t year;
	char text[] = "0000-00-00T00:00:00.000000000Z";

	civil(days, &year, &month, &day);
	fixed(text, (uint64_t)year, 4);
	fixed(text + 5, month, 2);
	fixed(text + 8, day, 2);
	fixed(text + 11, of_day / 3600, 2);
	fixed(text + 14, of_day / 60 % 60, 2);
	fixed(text + 17, of_day % 60, 2);
	fixed(text + 20, fraction, 9);
	put(w, text, sizeof(text) - 1);
}

static void put_time_ns(struct writer *w, const struct hmb_cell *cell, int64_t ns)
{
	put_number(w, cell, ns < 0 ? -(uint64_t)ns : (uint64_t)ns, ns < 0);
}

static void put_row_text(struct writer *w, const struct row *row)
{
	const uint64_t *begin = row->render->row_begin + row->index;

	put(w, row->render->row_text + begin[0], begin[1] - begin[0]);
}

/* What a spreadsheet would take for a formula begins with an apostrophe instead. */
static void guard(struct writer *w)
{
	if (w->full || w->at == w->mark || !memchr("=+-@", *w->mark, 4))
		return;
	if (w->at == w->end) {
		w->full = 1;
		return;
	}
	memmove(w->mark + 1, w->mark, (size_t)(w->at - w->mark));
	*w->mark = '\'';
	w->at++;
}

static void put_cell(struct writer *w, const struct hmb_cell *cell, const struct row *row)
{
	const uint8_t *field = row->record + cell->at;

	if (cell->put == HMB_PUT_TEXT || row->payload_len < cell->needs) {
		put_aligned(w, cell, cell->text, cell->text_length);
		return;
	}
	switch (cell->put) {
	case HMB_PUT_UINT:
		put_uint(w, cell, field);
		break;
	case HMB_PUT_INT:
		put_int(w, cell, field);
		break;
	case HMB_PUT_FLOAT:
		put_float(w, cell, field);
		break;
	case HMB_PUT_CHARS:
		put_chars(w, cell, field);
		break;
	case HMB_PUT_HEX:
		if (cell->flags & HMB_CELL_HEX_MARK)
			put(w, "hex:", 4);
		put_hex(w, field, cell->width ? cell->width : row->payload_len);
		break;
	case HMB_PUT_SECONDS:
		put_seconds(w, cell, row->render->times[row->index]);
		break;
	case HMB_PUT_ISO:
		put_iso(w, row->render->times[row->index]);
		break;
	case HMB_PUT_NS:
		put_time_ns(w, cell, row->render->times[row->index]);
		break;
	case HMB_PUT_OFFSET:
		put_number(w, cell, row->render->offsets[row->index], 0);
		break;
	case HMB_PUT_ROW_TEXT:
		put_row_text(w, row);
		break;
	case HMB_PUT_MARK:
		w->mark = w->at;
		break;
	case HMB_PUT_GUARD:
		guard(w);
		break;
	}
}

static void put_line(struct writer *w, const struct hmb_render *render, uint64_t index)
{
	const uint8_t *record = render->data + (render->offsets[index] - render->base);
	struct hmb_record_hdr hdr;
	const struct hmb_program *program;
	struct row row = { .render = render, .index = index, .record = record };

	memcpy(&hdr, record, sizeof(hdr));
	row.payload_len = hdr.flags & HMB_REC_FLAG_WRAP_MARKER ? 0 : hdr.payload_len;
	program = &render->programs[render->program_of[hdr.opcode]];
	for (uint32_t i = 0; i < program->count; i++)
		put_cell(w, &program->cells[i], &row);
}

/* Take the spaces before the line feed away. */
static void trim(struct writer *w, const char *line)
{
	char *end = w->at - 1;

	if (w->at == line || *end != '\n')
		return;
	while (end > line && end[-1] == ' ')
		end--;
	*end = '\n';
	w->at = end + 1;
}

int hmb_render(struct hmb_render *render)
{
	struct writer w = { .at = render->out, .end = render->out + render->out_cap };
	uint64_t first = render->next;

	while (render->next < render->n) {
		char *line = w.at;

		put_line(&w, render, render->next);
		if (w.full) {
			w.at = line;
			break;
		}
		if (render->trim)
			trim(&w, line);
		render->next++;
	}
	render->out_len = (uint64_t)(w.at - render->out);
	return w.full && render->next == first ? -ENOSPC : 0;
}
