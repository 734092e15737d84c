; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 dereferenceable(128) %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %t.4 = alloca [32 x float], align 64
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  store <8 x float> zeroinitializer, ptr %t.4, align 64
  %.5 = getelementptr float, ptr %t.4, i64 8
  store <8 x float> zeroinitializer, ptr %.5, align 32
  %.6 = getelementptr float, ptr %t.4, i64 16
  store <8 x float> zeroinitializer, ptr %.6, align 64
  %.7 = getelementptr float, ptr %t.4, i64 24
  store <8 x float> zeroinitializer, ptr %.7, align 32
  %.10 = icmp slt i64 0, %n
  br i1 %.10, label %k_body.8, label %k_done.9
k_body.8:
  %k.11 = phi i64 [ 0, %first.1 ], [ %k_next.36, %k_body.8 ]
  %.12 = load <8 x float>, ptr %t.4, align 64
  %.13 = load <8 x float>, ptr %.5, align 32
  %.14 = mul nsw i64 %k.11, 16
  %.15 = getelementptr float, ptr %A, i64 %.14
  %.16 = load <8 x float>, ptr %.15, align 4
  %.17 = getelementptr float, ptr %.15, i64 8
  %.18 = load <8 x float>, ptr %.17, align 4
  %.19 = load float, ptr %.15, align 4
  %.20 = insertelement <8 x float> poison, float %.19, i64 0
  %.21 = shufflevector <8 x float> %.20, <8 x float> poison, <8 x i32> zeroinitializer
  %.22 = fmul contract <8 x float> %.16, %.21
  %.23 = fmul contract <8 x float> %.18, %.21
  %.24 = fadd contract <8 x float> %.12, %.22
  %.25 = fadd contract <8 x float> %.13, %.23
  store <8 x float> %.24, ptr %t.4, align 64
  store <8 x float> %.25, ptr %.5, align 32
  %.26 = load <8 x float>, ptr %.6, align 64
  %.27 = load <8 x float>, ptr %.7, align 32
  %.28 = getelementptr float, ptr %.15, i64 1
  %.29 = load float, ptr %.28, align 4
  %.30 = insertelement <8 x float> poison, float %.29, i64 0
  %.31 = shufflevector <8 x float> %.30, <8 x float> poison, <8 x i32> zeroinitializer
  %.32 = fmul contract <8 x float> %.16, %.31
  %.33 = fmul contract <8 x float> %.18, %.31
  %.34 = fadd contract <8 x float> %.26, %.32
  %.35 = fadd contract <8 x float> %.27, %.33
  store <8 x float> %.34, ptr %.6, align 64
  store <8 x float> %.35, ptr %.7, align 32
  %k_next.36 = add nuw nsw i64 %k.11, 1
  %.37 = icmp slt i64 %k_next.36, %n
  br i1 %.37, label %k_body.8, label %k_done.9, !llvm.loop !0
k_done.9:
  %.38 = load <8 x float>, ptr %t.4, align 64
  %.39 = load <8 x float>, ptr %.5, align 32
  store <8 x float> %.38, ptr %C, align 4
  %.40 = getelementptr float, ptr %C, i64 8
  store <8 x float> %.39, ptr %.40, align 4
  %.41 = load <8 x float>, ptr %.6, align 64
  %.42 = load <8 x float>, ptr %.7, align 32
  %.43 = getelementptr float, ptr %C, i64 16
  store <8 x float> %.41, ptr %.43, align 4
  %.44 = getelementptr float, ptr %C, i64 24
  store <8 x float> %.42, ptr %.44, align 4
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 dereferenceable(128) %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %t.4 = alloca [32 x float], align 64
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  store <16 x float> zeroinitializer, ptr %t.4, align 64
  %.5 = getelementptr float, ptr %t.4, i64 16
  store <16 x float> zeroinitializer, ptr %.5, align 64
  %.8 = icmp slt i64 0, %n
  br i1 %.8, label %k_body.6, label %k_done.7
k_body.6:
  %k.9 = phi i64 [ 0, %first.1 ], [ %k_next.26, %k_body.6 ]
  %.10 = load <16 x float>, ptr %t.4, align 64
  %.11 = mul nsw i64 %k.9, 16
  %.12 = getelementptr float, ptr %A, i64 %.11
  %.13 = load <16 x float>, ptr %.12, align 4
  %.14 = load float, ptr %.12, align 4
  %.15 = insertelement <16 x float> poison, float %.14, i64 0
  %.16 = shufflevector <16 x float> %.15, <16 x float> poison, <16 x i32> zeroinitializer
  %.17 = fmul contract <16 x float> %.13, %.16
  %.18 = fadd contract <16 x float> %.10, %.17
  store <16 x float> %.18, ptr %t.4, align 64
  %.19 = load <16 x float>, ptr %.5, align 64
  %.20 = getelementptr float, ptr %.12, i64 1
  %.21 = load float, ptr %.20, align 4
  %.22 = insertelement <16 x float> poison, float %.21, i64 0
  %.23 = shufflevector <16 x float> %.22, <16 x float> poison, <16 x i32> zeroinitializer
  %.24 = fmul contract <16 x float> %.13, %.23
  %.25 = fadd contract <16 x float> %.19, %.24
  store <16 x float> %.25, ptr %.5, align 64
  %k_next.26 = add nuw nsw i64 %k.9, 1
  %.27 = icmp slt i64 %k_next.26, %n
  br i1 %.27, label %k_body.6, label %k_done.7, !llvm.loop !0
k_done.7:
  %.28 = load <16 x float>, ptr %t.4, align 64
  store <16 x float> %.28, ptr %C, align 4
  %.29 = load <16 x float>, ptr %.5, align 64
  %.30 = getelementptr float, ptr %C, i64 16
  store <16 x float> %.29, ptr %.30, align 4
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
