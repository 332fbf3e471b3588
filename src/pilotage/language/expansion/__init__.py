"""From a definition and its lists to numbered packages, their files and commands, and the graph these imply."""
