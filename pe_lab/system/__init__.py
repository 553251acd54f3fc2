"""Files, processes, memory, errors and arguments of programs: nothing here knows what an encoding is."""
