"""The demonstration: a year of real flights through server, kill, replay and Spark (`script/demo`)."""
