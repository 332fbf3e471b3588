// Reads two files and writes a third of 64 bytes: the least that a package with files can be.
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
  char bytes[64];
  memset(bytes, '.', sizeof bytes);
  if (count != 4) return 2;
  for (int each = 1; each <= 2; each++) {
    int file = open(words[each], O_RDONLY);
    if (file < 0 || read(file, bytes + (each - 1) * 32, 32) <= 0) return 1;
    close(file);
  }
  int made = open(words[3], O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (made < 0 || write(made, bytes, sizeof bytes) != sizeof bytes) return 1;
  return close(made);
}
