"""Writing on the executors of a Spark session: what is written there is committed on the driver as ever."""
