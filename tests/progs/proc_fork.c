/* Connections and fork. */
#include "proc.h"
#include <pthread.h>
#include <sched.h>

static void per_connection(int listener)
{
    pid_t clients[5], workers[5];
    for (int i = 0; i < 5; i++)
        clients[i] = client(ROUNDS, listener);
    for (int i = 0; i < 5; i++) {
        int fd = answer(listener);
        workers[i] = MUST(fork());
        if (workers[i] == 0) {
            close(listener);
            echo_until_end(fd, fd);
            exit(0);
        }
        close(fd);
    }
    for (int i = 0; i < 5; i++)
        reap(clients[i], "client");
    for (int i = 0; i < 5; i++)
        reap(workers[i], "worker");
}

static void prefork(int listener)
{
    pid_t clients[9], workers[3];
    for (int i = 0; i < 3; i++) {
        workers[i] = MUST(fork());
        if (workers[i] == 0)
            for (;;) {
                int fd = answer(listener);
                echo_until_end(fd, fd);
                close(fd);
            }
    }
    for (int i = 0; i < 9; i++)
        clients[i] = client(ROUNDS, listener);
    for (int i = 0; i < 9; i++)
        reap(clients[i], "client");
    for (int i = 0; i < 3; i++)
        kill(workers[i], SIGTERM);
    for (int i = 0; i < 3; i++)
        reap(workers[i], "worker");
}

/* Parent and child use one upgraded connection in turn; a pipe each way says whose turn it is. */
static void turns(int listener)
{
    int to_child[2], to_parent[2];
    char c = 'x';
    pid_t peer = client(ROUNDS, listener);
    int fd = answer(listener);
    serve(fd, 0, WARM);
    MUST(pipe(to_child));
    MUST(pipe(to_parent));
    pid_t child = MUST(fork());
    if (child == 0) {
        for (int from = WARM; from < ROUNDS - 40; from += 20) {
            if (read(to_child[0], &c, 1) != 1)
                die("turn of the child");
            serve(fd, from, from + 10);
            (void)!write(to_parent[1], &c, 1);
        }
        _exit(0);
    }
    int from;
    for (from = WARM; from < ROUNDS - 40; from += 20) {
        (void)!write(to_child[1], &c, 1);
        if (read(to_parent[0], &c, 1) != 1)
            die("turn of the parent");
        serve(fd, from + 10, from + 20);
    }
    reap(child, "child");
    serve(fd, from, ROUNDS);
    finish(fd);
    reap(peer, "client");
}

/* The server goes into the background in the middle of a conversation. */
static void background(int listener)
{
    pid_t peer = client(ROUNDS, listener);
    pid_t server = MUST(fork());
    if (server == 0) {
        int fd = answer(listener);
        serve(fd, 0, WARM);
        if (MUST(fork()) > 0)
            _exit(0);
        setsid();
        serve(fd, WARM, ROUNDS);
        finish(fd);
        _exit(0);
    }
    reap(server, "first server");
    reap(peer, "client");
}

enum { LEAVE, EXIT, CLOSE, UNSEEN, SAME_MEMORY };

static int close_it(void *arg)
{
    close(*(int *)arg);
    return 0;
}

/* The child has its own descriptors and our memory. */
static pid_t same_memory(int fd)
{
    static char stack[65536] __attribute__((aligned(16)));
    return MUST(clone(close_it, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &fd));
}

static void brief_child(int listener, int how)
{
    pid_t peer = client(ROUNDS, listener);
    int fd = answer(listener), from = 0;
    for (int i = 0; i < 3; i++) {
        serve(fd, from, from + WARM);
        from += WARM;
        pid_t child = how == UNSEEN ? MUST(_Fork()) : how == SAME_MEMORY ? same_memory(fd) : MUST(fork());
        if (child == 0) {
            if (how == CLOSE || how == UNSEEN)
                close(fd);
            if (how == EXIT)
                exit(0);
            _exit(0);
        }
        reap(child, "child");
    }
    serve(fd, from, ROUNDS);
    finish(fd);
    reap(peer, "client");
}

static void child_leaves(int listener) { brief_child(listener, LEAVE); }
static void child_exits(int listener) { brief_child(listener, EXIT); }
static void child_closes(int listener) { brief_child(listener, CLOSE); }
/* No handler of pthread_atfork runs. */
static void unseen_child_closes(int listener) { brief_child(listener, UNSEEN); }
static void child_in_our_memory_closes(int listener) { brief_child(listener, SAME_MEMORY); }

/* The parent's close must not end the connection while the child has it; the child's exit must. */
static void child_is_last(int listener)
{
    pid_t peer = client(ROUNDS, listener);
    int fd = answer(listener);
    serve(fd, 0, WARM);
    pid_t child = MUST(fork());
    if (child == 0) {
        nap(50);
        serve(fd, WARM, ROUNDS);
        char end;
        _exit(recv(fd, &end, 1, 0) == 0 ? 0 : 4);
    }
    close(fd);
    reap(child, "child");
    reap(peer, "client");
}

static volatile int warm, served;

static void *serve_in_thread(void *arg)
{
    serve(*(int *)arg, 0, WARM);
    warm = 1;
    serve(*(int *)arg, WARM, ROUNDS);
    served = 1;
    return NULL;
}

static int child_closes_well(int fd)
{
    int status;
    pid_t child = MUST(fork());
    if (child == 0) {
        close(fd);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    return status == 0;
}

/* Children are made while the connection is still on TCP, and until all is said once it was upgraded. None between: a
 * connection that is always shared stays where it is. */
static void fork_beside_a_thread(int listener)
{
    pid_t peer = client(ROUNDS, listener);
    int fd = answer(listener), bad = 0;
    pthread_t t;
    pthread_create(&t, NULL, serve_in_thread, &fd);
    for (int i = 0; i < 30; i++)
        bad += !child_closes_well(fd);
    while (!warm)
        nap(1);
    for (int i = 0; i < 30 || !served; i++)
        bad += !child_closes_well(fd);
    report("children with a bad end: %d", bad);
    pthread_join(t, NULL);
    finish(fd);
    reap(peer, "client");
}

/* The client side forks: the child sends, the parent receives. */
static void split_directions(int listener)
{
    pid_t server = MUST(fork());
    if (server == 0) {
        int fd = answer(listener);
        echo_until_end(fd, fd);
        _exit(0);
    }
    int fd = dial(port);
    talk(fd, 0, WARM);
    pid_t child = MUST(fork());
    unsigned char want[2048], have[2048];
    if (child == 0) {
        for (int i = WARM; i < ROUNDS; i++) {
            size_t len = round_bytes(i, want);
            send_all(fd, want, len);
        }
        _exit(0);
    }
    int wrong = 0;
    for (int i = WARM; i < ROUNDS; i++) {
        size_t len = round_bytes(i, want);
        recv_all(fd, have, len);
        wrong += memcmp(want, have, len) != 0;
    }
    report("wrong rounds: %d", wrong);
    reap(child, "sender");
    MUST(shutdown(fd, SHUT_WR));
    finish(fd);
    reap(server, "server");
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "per-connection", per_connection }, { "prefork", prefork }, { "turns", turns }, { "background", background },
        { "child-leaves", child_leaves }, { "child-exits", child_exits }, { "child-closes", child_closes },
        { "unseen-child-closes", unseen_child_closes }, { "same-memory", child_in_our_memory_closes },
        { "child-is-last", child_is_last }, { "beside-a-thread", fork_beside_a_thread },
        { "split-directions", split_directions }, { NULL, NULL } };
    return play(argc, argv, scenes);
}
