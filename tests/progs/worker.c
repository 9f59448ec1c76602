/*
 * worker server PORT PORT2    echoes on PORT, a thread for each connection. A line on stdin:
 *                             hostile USER: forks a worker that becomes USER and spoils all memory that it shares with anybody
 *                             sibling: forks another one, which echoes on PORT2
 * worker client PORT ROUNDS   a connection of some rounds, "ready"; with a line on stdin, then, another one of ROUNDS, of
 *                             which it says whether TCP carried it
 */
#include "common.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static void *echo(void *arg)
{
    char buf[4096];
    int fd = (int)(intptr_t)arg;
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        send_all(fd, buf, n);
    close(fd);
    return NULL;
}

static void *serve(void *listener)
{
    for (;;) {
        pthread_t thread;
        intptr_t fd = answer((int)(intptr_t)listener);
        pthread_create(&thread, NULL, echo, (void *)fd);
        pthread_detach(thread);
    }
}

static uint64_t state = 7;
/* Of long mappings, which are sparse, this much. */
#define MOST (16 << 20)

static void scribble(volatile uint64_t *at, size_t len)
{
    for (size_t i = 0; i < len / 8; i += 1 + next_random(&state) % 16)
        switch (next_random(&state) % 4) {
        case 0:
            at[i] = next_random(&state);
            break;
        case 1:
            at[i] = 0;
            break;
        case 2:
            at[i] ^= 1ull << next_random(&state) % 64;
            break;
        default:
            at[i] += 1;
        }
}

/* What is mapped and what can be: every shared page, of any file and of none. */
static void spoil(void)
{
    static int told;
    char line[512], name[256], path[32], may[5];
    unsigned long from, to;
    int mappings = 0, files = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %4s", &from, &to, may) != 3 || strcmp(may, "rw-s") != 0)
            continue;
        mappings++;
        scribble((void *)from, to - from < MOST ? to - from : MOST);
    }
    if (maps)
        fclose(maps);
    for (int fd = 3; fd < 65536; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, name, sizeof name - 1);
        if (n < 7 || memcmp(name, "/memfd:", 7) != 0)
            continue;
        void *p = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            continue;
        files++;
        scribble(p, lseek(fd, 0, SEEK_END) < MOST ? lseek(fd, 0, SEEK_END) : MOST);
        munmap(p, MOST);
    }
    if (!told++)
        report("spoiled %d mappings, %d files", mappings, files);
}

static void hostile(uid_t user)
{
    MUST(setresgid(user, user, user));
    MUST(setresuid(user, user, user));
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
    for (;;)
        spoil();
}

static int server(int port, int port2)
{
    char line[64];
    pthread_t thread;
    intptr_t own = listen_on(port), other = listen_on(port2);
    pthread_create(&thread, NULL, serve, (void *)own);
    report("listening");
    while (fgets(line, sizeof line, stdin)) {
        pid_t child = MUST(fork());
        if (child == 0 && strncmp(line, "hostile ", 8) == 0)
            hostile(atoi(line + 8));
        if (child == 0) {
            MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
            report("sibling");
            serve((void *)other);
        }
    }
    return 0;
}

static uint64_t talk(int fd, int rounds)
{
    unsigned char out[2048], in[2048];
    uint64_t sent = 0;
    for (int i = 0; i < rounds; i++) {
        size_t len = 1 + mix(i) % sizeof out;
        fill(out, mix(i), 0, len);
        send_all(fd, out, len);
        recv_all(fd, in, len);
        if (memcmp(in, out, len) != 0)
            die("round %d came back wrong", i);
        sent += len;
    }
    return sent;
}

static int client(int port, int rounds)
{
    char line[16];
    struct tcp_info_head {
        uint8_t bytes[120];
        uint64_t acked;
    } info = { 0 };
    socklen_t len = sizeof info;
    int first = dial(port);
    talk(first, 200);
    report("ready");
    if (!fgets(line, sizeof line, stdin))
        return 1;
    int second = dial(port);
    uint64_t sent = talk(second, rounds);
    /* tcpi_bytes_acked. */
    MUST(getsockopt(second, IPPROTO_TCP, TCP_INFO, &info, &len));
    report("talked, %s", info.acked < sent / 4 ? "past TCP" : "over TCP");
    /* Not a word on the first one, of which the worker may do what it likes. */
    _exit(0);
}

int main(int argc, char **argv)
{
    limit_life(900);
    signal(SIGPIPE, SIG_IGN);
    if (argc == 4 && strcmp(argv[1], "server") == 0)
        return server(atoi(argv[2]), atoi(argv[3]));
    if (argc == 4 && strcmp(argv[1], "client") == 0)
        return client(atoi(argv[2]), atoi(argv[3]));
    errno = 0;
    die("see the head of worker.c");
}
