"""Plain folders of data files, as Spark and other engines write them: no document says what they hold."""
