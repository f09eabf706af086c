"""What it costs to read an inverted index, to hold it, and to look into it, in seconds and in memory."""

# Seconds that one core takes, per index, value, and pair of value and file: to hold an index, to read its
# file, and to look into a held one. Roughly, as they depend on types and on the machine.
HOLD_SECONDS, HOLD_VALUE, HOLD_PAIR = 0.004, 5e-8, 2e-8
READ_VALUE, READ_PAIR = 1.5e-8, 3.5e-8
SCAN_VALUE, SCAN_PAIR = 2e-9, 6e-9
TOUCH = 0.15  # the share of a row group's time that it takes to find nothing but one value in it
VALUE_PAIRS = 4  # a value takes as much memory as this many pairs
