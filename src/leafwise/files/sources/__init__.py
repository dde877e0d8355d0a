"""Where bytes come from: local files, of which `disk` makes all calls, and remote ones, behind a URL that fsspec
opens, on a web server or in a store that speaks S3. Requests that fail for a reason that may pass are repeated.
`folder` and `patterns` list what is there."""
