"""The answers to the requests of the page, as plain data. Their types are in page/src/types.ts."""

MOST_ROWS = 500  # in one answer
MOST_LISTED = 100  # ties, metadata, reasons and the like
