module github.com/roce-go/roce/crc/_isal

go 1.26

require github.com/roce-go/roce v0.0.0

replace github.com/roce-go/roce => ../..
