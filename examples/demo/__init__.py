"""Demo: a year of real flights through publish, server kill, replay and Spark (`script/demo`)."""
