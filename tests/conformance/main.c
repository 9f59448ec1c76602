/*
 * conformance peer NAME                    the other end
 * conformance run NAME KEY=VALUE...        all cases, or those whose names contain match=
 *
 * Keys: warm=N|up, the round trips before each case (up: until the connection has left TCP; any: another number for
 * each case); high=1, ports above those that connect gives out; dials=1, the cases connect rather than accept; jobs=N.
 */
#include "frame.h"
#include "run.h"
#include <sys/un.h>

#define MAX 2000

static struct entry { char name[80]; case_fn *run; int arg; enum plan plan; } table[MAX];
static struct job { pid_t pid; int file, status; char *text; struct facts *facts; } jobs[MAX];
static int count;
static const char *peer_name, *match = "";
static int any;
struct facts *facts;

void add_case(const char *name, case_fn *run, int arg, enum plan plan)
{
    if (count == MAX)
        die("too many cases");
    struct entry *e = &table[count++];
    snprintf(e->name, sizeof e->name, "%s", name);
    e->run = run;
    e->arg = arg;
    e->plan = plan;
}

/* Beyond what a case fills or closes. */
static int aside(int fd, int at)
{
    int high = MUST(fcntl(fd, F_DUPFD_CLOEXEC, at));
    close(fd);
    return high;
}

static void meet_peer(void)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    control = MUST(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "%s", peer_name);
    MUST(connect(control, (struct sockaddr *)&a, sizeof a));
    control = aside(control, 800);
}

static void start(int i)
{
    struct job *j = &jobs[i];
    char *name = table[i].name;
    j->file = aside(MUST(memfd_create("transcript", MFD_CLOEXEC)), 810);
    MUST(fcntl(j->file, F_SETFL, O_APPEND));
    j->facts = mmap(NULL, sizeof *j->facts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    j->facts->began = now_ms();
    j->pid = MUST(fork());
    if (j->pid)
        return;
    /* What a case leaves behind goes with it. */
    setpgid(0, 0);
    transcript = aside(j->file, 801);
    facts = j->facts;
    dup2(transcript, 2);
    limit_life(30);
    meet_peer();
    if (any) {
        uint64_t h = any;
        for (char *p = name; *p; p++)
            h = mix(h + *p);
        settings.warm = h % 8;
    }
    table[i].run(table[i].arg);
    _exit(0);
}

static void print(int i)
{
    static const char *plans[] = { "upgrades", "stays", "none" };
    struct job *j = &jobs[i];
    printf("== %s\n%s", table[i].name, j->text);
    if (WIFSIGNALED(j->status))
        printf("-- signal %d\n", WTERMSIG(j->status));
    else
        printf("-- exit %d\n", WEXITSTATUS(j->status));
    fprintf(stderr, "#%s %s %d %d %d %ld\n", plans[table[i].plan], table[i].name, j->facts->warmed, j->facts->upgraded,
            j->facts->switched, j->facts->took);
}

static void ended(struct job *j, int status)
{
    int len = lseek(j->file, 0, SEEK_END);
    /* Whatever it started must not write any more. */
    kill(-j->pid, SIGKILL);
    j->status = status;
    j->facts->took = now_ms() - j->facts->began;
    j->text = calloc(1, len + 1);
    MUST(pread(j->file, j->text, len, 0));
    close(j->file);
}

static int chosen(int i) { return strstr(table[i].name, match) != NULL; }

static void run_all(int width)
{
    int running = 0, next = 0, status;
    while (running || next < count) {
        while (running < width && next < count) {
            if (chosen(next)) {
                start(next);
                running++;
            }
            next++;
        }
        if (!running)
            break;
        pid_t pid = MUST(waitpid(-1, &status, 0));
        for (int i = 0; i < next; i++)
            if (jobs[i].pid == pid) {
                ended(&jobs[i], status);
                running--;
            }
    }
    for (int i = 0; i < count; i++)
        if (chosen(i))
            print(i);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

const char *self_path(void) { return "/proc/self/exe"; }

int main(int argc, char **argv)
{
    int width = 6;
    if (argc > 2 && strcmp(argv[1], "peer") == 0)
        peer_main(argv[2]);
    if (argc < 3 || strcmp(argv[1], "run") != 0)
        return role_main(argc, argv);
    peer_name = argv[2];
    for (int i = 3; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value)
            die("usage: KEY=VALUE, not %s", argv[i]);
        *value++ = 0;
        int n = atoi(value);
        if (strcmp(argv[i], "warm") == 0)
            settings.warm = strcmp(value, "up") == 0 ? WARM_UP : n;
        else if (strcmp(argv[i], "any") == 0)
            any = n, settings.nudge = 1;
        else if (strcmp(argv[i], "high") == 0)
            settings.high = n;
        else if (strcmp(argv[i], "dials") == 0)
            settings.dials = n;
        else if (strcmp(argv[i], "jobs") == 0)
            width = n;
        else if (strcmp(argv[i], "match") == 0)
            match = value;
        else
            die("no key %s", argv[i]);
    }
    qsort(table, count, sizeof *table, by_name);
    for (int i = 1; i < count; i++)
        if (strcmp(table[i - 1].name, table[i].name) == 0)
            die("two cases %s", table[i].name);
    run_all(width);
    return 0;
}
