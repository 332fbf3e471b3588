/* The floor of running programs: posix_spawn and wait, so many in flight, nothing else. floor COUNT IN_FLIGHT PROGRAM [ARG…] */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: floor COUNT IN_FLIGHT PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    long count = atol(argv[1]), in_flight = atol(argv[2]), running = 0;
    for (long started = 0; started < count; started++) {
        pid_t child;
        if (running == in_flight) {
            if (wait(NULL) < 0) return 1;
            running--;
        }
        if (posix_spawn(&child, argv[3], NULL, NULL, argv + 3, environ) != 0) return 1;
        running++;
    }
    while (running-- > 0)
        if (wait(NULL) < 0) return 1;
    return 0;
}
