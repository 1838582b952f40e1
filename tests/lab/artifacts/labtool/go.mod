module muster.dev/lab/labtool

go 1.26.0
