-- Who owns a dataset, and where it comes from, can be noted in its document; NULL removes a key.
ALTER DATASET planes SET METADATA (source = 'FAA registry', year = 2013, checked = FALSE);
ALTER DATASET planes SET METADATA (checked = NULL);
SHOW METADATA FROM planes;
