/* The floor of running programs: posix_spawn and wait, so many in flight, nothing else.
   floor COUNT IN_FLIGHT PROGRAM [ARG…] runs one program over and over, floor LIST IN_FLIGHT each line of a file, words apart by a space. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { WORDS_MAX = 64, LINE_MAX = 4096 };

extern char **environ;
static long running = 0;

static int await_one(void) {
    int status;
    if (wait(&status) < 0 || status != 0) return 1;
    running--;
    return 0;
}

static int run(char **words, long in_flight) {
    pid_t child;
    if (running == in_flight && await_one() != 0) return 1;
    if (posix_spawn(&child, words[0], NULL, NULL, words, environ) != 0) return 1;
    running++;
    return 0;
}

static int run_list(FILE *list, long in_flight) {
    char line[LINE_MAX], *words[WORDS_MAX + 1];
    while (fgets(line, sizeof line, list) != NULL) {
        int count = 0;
        for (char *word = strtok(line, " \n"); word != NULL && count < WORDS_MAX; word = strtok(NULL, " \n")) words[count++] = word;
        words[count] = NULL;
        if (count == 0 || run(words, in_flight) != 0) return 1;
    }
    return ferror(list);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: floor COUNT IN_FLIGHT PROGRAM [ARGUMENT...], or floor LIST IN_FLIGHT\n");
        return 2;
    }
    long in_flight = atol(argv[2]);
    if (argc == 3) {
        FILE *list = fopen(argv[1], "r");
        if (list == NULL || run_list(list, in_flight) != 0) return 1;
    } else {
        for (long started = atol(argv[1]); started > 0; started--)
            if (run(argv + 3, in_flight) != 0) return 1;
    }
    while (running > 0)
        if (await_one() != 0) return 1;
    return 0;
}
