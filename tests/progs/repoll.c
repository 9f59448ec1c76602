/* The same steps on rsockets in a set of repoll and on TCP in one of epoll: both must show the same.
   repoll-c ADDRESS PORT, under `shortwire run --rsocket`, whose library has the names of librdmacm. */
#include "common.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

/* Calls by their names with a letter in front, or none: librdmacm's, or the kernel's. */
struct calls {
    int (*socket)(int, int, int), (*bind)(int, const struct sockaddr *, socklen_t), (*listen)(int, int);
    int (*accept)(int, struct sockaddr *, socklen_t *), (*connect)(int, const struct sockaddr *, socklen_t);
    ssize_t (*recv)(int, void *, size_t, int), (*send)(int, const void *, size_t, int);
    int (*setsockopt)(int, int, int, const void *, socklen_t), (*shutdown)(int, int), (*close)(int);
    int (*create)(int), (*ctl)(int, int, int, struct epoll_event *), (*wait)(int, struct epoll_event *, int, int);
};

static const struct calls kernels = { socket, bind, listen, accept, connect, recv, send, setsockopt, shutdown, close, epoll_create1, epoll_ctl, epoll_wait };
static struct calls ours;

static void *name(const char *what)
{
    void *found = dlsym(RTLD_DEFAULT, what);
    if (!found) die("there is no %s", what);
    return found;
}

static void find_ours(void)
{
    ours = (struct calls){ name("rsocket"), name("rbind"), name("rlisten"), name("raccept"), name("rconnect"), name("rrecv"), name("rsend"),
        name("rsetsockopt"), name("rshutdown"), name("rclose"), name("repoll_create"), name("repoll_ctl"), name("repoll_wait") };
}

static struct sockaddr_in meeting;

struct connecting { const struct calls *calls; int fd; };

static void *connects(void *what)
{
    struct connecting *c = what;
    MUST(c->calls->connect(c->fd, (struct sockaddr *)&meeting, sizeof meeting));
    return NULL;
}

static int listener(const struct calls *c)
{
    for (;;) {
        int fd = MUST(c->socket(AF_INET, SOCK_STREAM, 0));
        MUST(c->setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)));
        meeting.sin_port = htons(ntohs(meeting.sin_port) + 1);
        if (c->bind(fd, (struct sockaddr *)&meeting, sizeof meeting) == 0 && c->listen(fd, 5) == 0)
            return fd;
        /* The kernel may have given the port to a client that was here before. */
        if (errno != EADDRINUSE) die("a listener");
        MUST(c->close(fd));
    }
}

static void pair(const struct calls *c, int ends[2])
{
    int door = listener(c);
    struct connecting connecting = { c, MUST(c->socket(AF_INET, SOCK_STREAM, 0)) };
    pthread_t thread;
    if (pthread_create(&thread, NULL, connects, &connecting)) die("a thread");
    ends[1] = MUST(c->accept(door, NULL, NULL));
    pthread_join(thread, NULL);
    ends[0] = connecting.fd;
    MUST(c->close(door));
}

/* What the kernel has shown, step by step, and the place of the next in it. */
static uint32_t shown[400];
static int steps, wrong;

/* Of the kernel it is kept; with ours it is compared. What is to come may take its time there; what is not to come can only be waited for. */
static void shows(const struct calls *c, int set, const char *step, uint32_t asked)
{
    struct epoll_event events[4];
    uint32_t expected = c == &kernels ? 0 : shown[steps];
    int n = MUST(c->wait(set, events, 4, expected ? 20000 : 60));
    /* An rsocket whose peer has closed it has ended both ways, as rpoll tells, too. */
    uint32_t seen = n ? events[0].events & ~EPOLLHUP : 0;
    if (n > 1) die("%s: %d events of one member", step, n);
    if (c == &kernels) {
        shown[steps] = seen;
    } else if (seen != expected) {
        printf("asked %x, %s: %x, with the kernel %x\n", asked, step, seen, expected);
        wrong++;
    }
    if (++steps == 400) die("too many steps");
}

static void ask(const struct calls *c, int set, int op, int fd, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.fd = fd };
    MUST(c->ctl(set, op, fd, &event));
}

static void put(const struct calls *c, int fd, const char *text)
{
    if (c->send(fd, text, strlen(text), 0) != (ssize_t)strlen(text)) die("send");
}

static void take(const struct calls *c, int fd, size_t count)
{
    char bytes[16];
    for (size_t done = 0; done < count;) done += MUST(c->recv(fd, bytes, count - done, 0));
}

static void walk(const struct calls *c, uint32_t asked)
{
    int ends[2], set = MUST(c->create(EPOLL_CLOEXEC));
    pair(c, ends);
    int here = ends[0], there = ends[1];
    ask(c, set, EPOLL_CTL_ADD, here, asked);
    shows(c, set, "new", asked);
    put(c, there, "abcdef");
    shows(c, set, "data", asked);
    shows(c, set, "the same data", asked);
    take(c, here, 3);
    shows(c, set, "half of it", asked);
    put(c, there, "gh");
    shows(c, set, "more data", asked);
    take(c, here, 5);
    shows(c, set, "nothing", asked);
    put(c, there, "i");
    shows(c, set, "data again", asked);
    ask(c, set, EPOLL_CTL_MOD, here, asked);
    shows(c, set, "asked again", asked);
    take(c, here, 1);
    ask(c, set, EPOLL_CTL_MOD, here, asked | EPOLLOUT);
    shows(c, set, "asked for room", asked);
    ask(c, set, EPOLL_CTL_MOD, here, asked);
    MUST(c->shutdown(there, SHUT_WR));
    shows(c, set, "half an end", asked);
    shows(c, set, "still half an end", asked);
    ask(c, set, EPOLL_CTL_DEL, here, 0);
    shows(c, set, "no member", asked);
    MUST(c->close(there));
    ask(c, set, EPOLL_CTL_ADD, here, asked);
    shows(c, set, "the end", asked);
    MUST(c->close(here));
    shows(c, set, "closed", asked);
    MUST(c->close(set));
}

/* A writer that has filled the connection is told once when the reader has made room. */
static void room(const struct calls *c)
{
    static char much[1 << 16];
    int ends[2], set = MUST(c->create(0));
    pair(c, ends);
    ask(c, set, EPOLL_CTL_ADD, ends[0], EPOLLOUT | EPOLLET);
    shows(c, set, "room", EPOLLOUT | EPOLLET);
    /* What is under way when a send finds no room comes back as room. */
    struct epoll_event event;
    size_t sent = 0;
    do {
        for (ssize_t n; (n = c->send(ends[0], much, sizeof much, MSG_DONTWAIT)) > 0;) sent += n;
        if (errno != EAGAIN) die("send");
    } while (MUST(c->wait(set, &event, 1, 60)) > 0);
    for (size_t got = 0; got < sent;) got += MUST(c->recv(ends[1], much, sizeof much, 0));
    shows(c, set, "room again", EPOLLOUT | EPOLLET);
    MUST(c->close(ends[0]));
    MUST(c->close(ends[1]));
    MUST(c->close(set));
}

static void *later(void *what)
{
    struct connecting *c = what;
    usleep(100000);
    if (c->calls) put(c->calls, c->fd, "x");
    else if (write(c->fd, &(uint64_t){ 1 }, 8) != 8) die("write");
    return NULL;
}

/* A listener, streams and a descriptor of the kernel in one set: whichever has something wakes who sleeps. */
static void mixed(const struct calls *c)
{
    int ends[2], set = MUST(c->create(0)), plain = MUST(eventfd(0, EFD_NONBLOCK));
    pair(c, ends);
    int door = listener(c);
    int members[] = { door, ends[0], plain };
    for (int i = 0; i < 3; i++) ask(c, set, EPOLL_CTL_ADD, members[i], EPOLLIN);
    struct connecting does[] = { { c, MUST(c->socket(AF_INET, SOCK_STREAM, 0)) }, { c, ends[1] }, { NULL, plain } };
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, i ? later : connects, &does[i])) die("a thread");
        struct epoll_event event;
        int n = MUST(c->wait(set, &event, 1, 20000));
        if (n != 1 || event.data.fd != members[i] || event.events != EPOLLIN) {
            printf("member %d: %d events, %x\n", i, n, n ? event.events : 0);
            wrong++;
        }
        int accepted = i == 0 ? MUST(c->accept(door, NULL, NULL)) : -1;
        if (i == 1) take(c, ends[0], 1);
        pthread_join(thread, NULL);
        if (i == 0) MUST(c->close(accepted));
        steps++;
    }
    MUST(c->close(does[0].fd));
    MUST(c->close(door));
    MUST(c->close(ends[0]));
    MUST(c->close(ends[1]));
    MUST(c->close(set));
}

int main(int argc, char **argv)
{
    static const uint32_t masks[] = { EPOLLIN, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLET, EPOLLIN | EPOLLRDHUP | EPOLLET,
        EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLET | EPOLLONESHOT, 0 };
    if (argc != 3) die("repoll-c ADDRESS PORT");
    find_ours();
    meeting.sin_family = AF_INET;
    if (inet_pton(AF_INET, argv[1], &meeting.sin_addr) != 1) die("an address");
    meeting.sin_port = htons(atoi(argv[2]));
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        const struct calls *c = i ? &ours : &kernels;
        steps = 0;
        for (size_t mask = 0; mask < sizeof masks / sizeof *masks; mask++) walk(c, masks[mask]);
        room(c);
        mixed(c);
    }
    printf("%d steps, %d wrong\n", steps, wrong);
    return wrong != 0;
}
