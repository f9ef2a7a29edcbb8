"""Benches: functions registered with `bench`, run by `script/bench`."""
