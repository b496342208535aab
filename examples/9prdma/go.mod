module github.com/roce-go/roce/examples/9prdma

go 1.26

require (
	github.com/hugelgupf/p9 v0.3.0
	github.com/roce-go/roce v0.0.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/sys v0.11.0
)

require (
	github.com/u-root/uio v0.0.0-20230305220412-3e8cd9d6bf63 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/roce-go/roce => ../..
