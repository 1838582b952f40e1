"""What modules do on a host: packages, files, programs, units, disks, and how hosts are reached."""
