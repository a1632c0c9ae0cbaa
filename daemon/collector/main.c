// SPDX-License-Identifier: Apache-2.0
/*
 * hmb-trace-collector: from the ring into the spool, and nothing else.  The daemon starts it or
 * finds it running; systemd starts it as a service of its own.
 */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "collector.h"

#define MS ((uint64_t)1000000)
#define INVALID_NS (100 * MS)
#define IDLE_MAX_NS (50 * MS)
#define IDLE_MIN_NS 100000u
#define BATCH_MAX ((uint64_t)256 << 10)
#define INDEX_MAX ((uint64_t)512 << 10)
#define SPOOL_DEFAULT ((uint64_t)64 << 20)
#define TAKE_OVER_NS 5000000000u

enum option_id {
	DEVICE = 256,
	SPOOL_DIR,
	SPOOL_NAME,
	SPOOL_SIZE,
	IDENTITY,
	LATENCY,
	IDLE,
	PEAK_RATE,
	LINGER,
	INDEX_BYTES,
	BATCH_BYTES,
	RING_FD,
	KEEP_UNKNOWN_FLAGS,
	STOP_ON_CORRUPT,
	ONCE,
	PAUSED,
	RESUME,
	TAKE_OVER,
	VERSION,
	HELP,
};

static const struct option options[] = {
	{ "device", required_argument, NULL, DEVICE },
	{ "spool-dir", required_argument, NULL, SPOOL_DIR },
	{ "spool-name", required_argument, NULL, SPOOL_NAME },
	{ "spool-size", required_argument, NULL, SPOOL_SIZE },
	{ "identity", required_argument, NULL, IDENTITY },
	{ "latency", required_argument, NULL, LATENCY },
	{ "idle", required_argument, NULL, IDLE },
	{ "peak-rate", required_argument, NULL, PEAK_RATE },
	{ "orphan-linger", required_argument, NULL, LINGER },
	{ "index-bytes", required_argument, NULL, INDEX_BYTES },
	{ "batch-bytes", required_argument, NULL, BATCH_BYTES },
	{ "ring-fd", required_argument, NULL, RING_FD },
	{ "keep-unknown-flags", no_argument, NULL, KEEP_UNKNOWN_FLAGS },
	{ "stop-on-corrupt", no_argument, NULL, STOP_ON_CORRUPT },
	{ "once", no_argument, NULL, ONCE },
	{ "paused", no_argument, NULL, PAUSED },
	{ "resume", no_argument, NULL, RESUME },
	{ "take-over", no_argument, NULL, TAKE_OVER },
	{ "version", no_argument, NULL, VERSION },
	{ "help", no_argument, NULL, HELP },
	{ NULL, 0, NULL, 0 },
};

static const char usage[] =
	"usage: hmb-trace-collector --device PATH [options]\n"
	"\n"
	"Copies trace records from a ring into the spool, where hmb-trace-daemon finds them.\n"
	"The daemon starts it; by hand it is of use only beside a daemon.\n"
	"\n"
	"  --device PATH          device node, file, or shm:/NAME\n"
	"  --spool-dir DIR        where the spool lies ($RUNTIME_DIRECTORY, else /dev/shm/hmb-trace-UID)\n"
	"  --spool-size BYTES     of a fresh spool (64 MiB, at least the ring)\n"
	"  --latency NS           longest wait while records come (2000000)\n"
	"  --peak-rate BYTES      a second, that firmware emits at most (1000000000)\n"
	"  --orphan-linger NS     end after so long without a daemon; 0: stay (60000000000)\n"
	"  --keep-unknown-flags   put records with unknown flags into the dump\n"
	"  --stop-on-corrupt      end at the first damaged record, tail untouched\n"
	"  --version, --help\n"
	"\n"
	"SIGTERM: take what is in the ring at this moment, commit it, end; the spool stays.\n";

void fail(int code, const char *format, ...)
{
	va_list values;

	fputs("hmb-trace-collector: ", stderr);
	va_start(values, format);
	vfprintf(stderr, format, values);
	va_end(values);
	fputc('\n', stderr);
	exit(code);
}

static uint64_t number(const char *name, const char *text)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || end == text || *text == '-')
		fail(EXIT_USAGE_ERROR, "--%s: found '%s', expected a whole number", name, text);
	return value;
}

static void take_option(struct settings *settings, int id, const char *name)
{
	switch (id) {
	case DEVICE:
		settings->device = optarg;
		break;
	case SPOOL_DIR:
		settings->spool_dir = optarg;
		break;
	case SPOOL_NAME:
		settings->spool_name = optarg;
		break;
	case IDENTITY:
		settings->identity = optarg;
		break;
	case SPOOL_SIZE:
		settings->spool_size = number(name, optarg);
		break;
	case LATENCY:
		settings->latency_ns = number(name, optarg);
		break;
	case IDLE:
		settings->idle_ns = number(name, optarg);
		break;
	case PEAK_RATE:
		settings->peak_rate = HMB_MAX(number(name, optarg), 1);
		break;
	case LINGER:
		settings->linger_ns = number(name, optarg);
		break;
	case INDEX_BYTES:
		settings->index_bytes = number(name, optarg);
		break;
	case BATCH_BYTES:
		settings->batch_bytes = number(name, optarg);
		break;
	case RING_FD:
		settings->ring_fd = (int)number(name, optarg);
		break;
	case KEEP_UNKNOWN_FLAGS:
		settings->keep_unknown_flags = 1;
		break;
	case STOP_ON_CORRUPT:
		settings->stop_on_corrupt = 1;
		break;
	case ONCE:
		settings->once = 1;
		break;
	case PAUSED:
		settings->paused = 1;
		break;
	case RESUME:
		settings->resume = 1;
		break;
	case TAKE_OVER:
		settings->take_over = 1;
		break;
	case VERSION:
		puts("hmb-trace-collector " HMB_TRACE_VERSION);
		exit(0);
	case HELP:
		fputs(usage, stdout);
		exit(0);
	default:
		exit(EXIT_USAGE_ERROR); /* getopt has said what is wrong */
	}
}

static const char *default_directory(void)
{
	const char *runtime = getenv("RUNTIME_DIRECTORY");
	static char buffer[64];

	if (runtime && *runtime)
		return strndup(runtime, strcspn(runtime, ":"));
	snprintf(buffer, sizeof(buffer), "/dev/shm/hmb-trace-%u", geteuid());
	return buffer;
}

static void read_options(struct settings *settings, int argc, char **argv)
{
	int id, index = 0;

	*settings = (struct settings){ .spool_size = SPOOL_DEFAULT,
				       .latency_ns = 2 * MS,
				       .peak_rate = 1000000000u,
				       .linger_ns = 60000 * MS,
				       .index_bytes = INDEX_MAX,
				       .batch_bytes = BATCH_MAX,
				       .ring_fd = -1 };
	while ((id = getopt_long(argc, argv, "", options, &index)) != -1)
		take_option(settings, id, options[index].name);
	if (optind < argc)
		fail(EXIT_USAGE_ERROR, "found '%s', expected an option; see --help", argv[optind]);
	if (!settings->device)
		fail(EXIT_USAGE_ERROR, "--device is missing; see --help");
	if (!settings->spool_dir)
		settings->spool_dir = default_directory();
}

/* Half a ring at peak rate bounds both waits, as the daemon has it. */
static void choose_waits(struct hmb_collector *c, const struct settings *settings)
{
	uint64_t half = (uint64_t)((double)c->ring.ring_size * 5e8 / (double)settings->peak_rate);

	c->idle_ns = HMB_MAX(IDLE_MIN_NS, HMB_MIN(IDLE_MAX_NS, half));
	if (settings->idle_ns)
		c->idle_ns = settings->idle_ns;
	c->latency_ns = HMB_MIN(settings->latency_ns, c->idle_ns);
}

static void fill(struct hmb_collector *c, const struct settings *settings,
		 const struct source *source, const struct place *place)
{
	*c = (struct hmb_collector){ .ring = source->ring,
				     .spool = place->spool,
				     .options = { .index_bytes = settings->index_bytes,
						  .keep_unknown_flags =
							  settings->keep_unknown_flags,
						  .stop_on_corrupt = settings->stop_on_corrupt },
				     .invalid_ns = INVALID_NS,
				     .batch_bytes = settings->batch_bytes,
				     .once = settings->once };
	choose_waits(c, settings);
}

/* R2: a re-initialisation that is under way has its time. */
static void begin(struct hmb_collector *c)
{
	uint64_t start = monotonic_ns();

	while (hmb_collector_begin(c)) {
		if (monotonic_ns() - start < INVALID_NS) {
			usleep(1000);
			continue;
		}
		if (hmb_collector_new_epoch(c, 1) == 0)
			return;
	}
}

static void go_on_from_leftover(struct hmb_collector *c)
{
	int continues = hmb_spool_continues(&c->spool, &c->ring, &c->options);
	struct hmb_commit last;

	if (continues < 0)
		fail(EXIT_LATER, "the spool is damaged; hmb-trace-daemon sets it aside");
	hmb_spool_read_commit(&c->spool, &last);
	hmb_collector_resume(c);
	if (continues == 2 && hmb_ring_store_tail(&c->ring, last.tail_before, last.tail_after))
		continues = 0;
	if (!continues && hmb_collector_new_epoch(c, 0) != 0)
		fail(EXIT_LATER, "the ring was re-initialised and is not ready yet");
}

/*
 * Everything is mapped; wait until the other has stopped at a commit.  It leaves nothing to be
 * judged: its last commit is where we go on.
 */
void take_over(struct hmb_collector *c, struct source *source, const struct place *place)
{
	struct hmb_live *live = hmb_spool_live(&place->spool);
	uint64_t start = monotonic_ns();
	struct hmb_ring_view view;
	struct hmb_commit last;
	uint32_t state;

	live->next_pid = (uint32_t)getpid();
	while ((state = __atomic_load_n(&live->state, __ATOMIC_ACQUIRE)) != HMB_LIVE_GONE) {
		if (monotonic_ns() - start > TAKE_OVER_NS) {
			live->next_pid = 0;
			fail(EXIT_BUSY, "the collector that runs does not make room");
		}
		hmb_live_wait(&live->state, state, 100 * MS);
	}
	while (source_lock(source) || place_lock(place))
		if (monotonic_ns() - start > 2 * TAKE_OVER_NS)
			fail(EXIT_BUSY, "the ring is consumed by another process");
	/* Where a third one was faster, and was killed, its last pass is judged as any leftover's. */
	hmb_spool_read_commit(&c->spool, &last);
	hmb_ring_view(&c->ring, &view);
	if (view.tail == last.tail_after)
		hmb_collector_resume(c);
	else
		go_on_from_leftover(c);
}

int main(int argc, char **argv)
{
	static struct hmb_collector c;
	struct settings settings;
	struct source source = { 0 };
	struct place place = { 0 };

	umask(077);
	read_options(&settings, argc, argv);
	sandbox_prefer();
	/* The ring's lock last: firmware may begin as soon as somebody holds it. */
	source_open(&source, &settings);
	place_open(&place, &settings, &source);
	if (!settings.take_over) {
		if (place_lock(&place))
			fail(EXIT_BUSY, "a collector runs on this spool already");
		source_claim(&source, &settings);
	}
	fill(&c, &settings, &source, &place);
	if (settings.take_over)
		hmb_collector_resume(&c); /* once more when it is our turn */
	else if (settings.resume)
		hmb_collector_resume(&c);
	else if (place.fresh)
		begin(&c);
	else
		go_on_from_leftover(&c);
	return serve(&c, &place, &source, &settings);
}
