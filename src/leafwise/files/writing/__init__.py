"""Writes files so that a reader finds either the old one or the new one, complete, on disks and in remote stores.
Arrays stream from memory, devices and other files, in bounded memory."""
