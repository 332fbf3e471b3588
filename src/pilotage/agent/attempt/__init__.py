"""One attempt: its scratch folder, inputs, commands, outputs, logs and diagnosis."""
