; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.54, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, -16
  %.10 = add nsw i64 %.9, 1
  %.11 = call i64 @llvm.smax.i64(i64 %.10, i64 0)
  %.12 = call i64 @llvm.smin.i64(i64 %.11, i64 16)
  %.13 = trunc i64 %.12 to i32
  %.14 = insertelement <8 x i32> poison, i32 %.13, i64 0
  %.15 = shufflevector <8 x i32> %.14, <8 x i32> poison, <8 x i32> zeroinitializer
  %.16 = icmp sge <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.15
  %.17 = trunc i64 %.12 to i32
  %.18 = insertelement <8 x i32> poison, i32 %.17, i64 0
  %.19 = shufflevector <8 x i32> %.18, <8 x i32> poison, <8 x i32> zeroinitializer
  %.20 = icmp sge <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.19
  %.21 = mul nsw i64 %i.8, -16
  %.22 = add nsw i64 %n, %.21
  %.23 = add nsw i64 %.22, -1
  %.24 = call i64 @llvm.smax.i64(i64 %.23, i64 0)
  %.25 = call i64 @llvm.smin.i64(i64 %.24, i64 16)
  %.26 = trunc i64 %.25 to i32
  %.27 = insertelement <8 x i32> poison, i32 %.26, i64 0
  %.28 = shufflevector <8 x i32> %.27, <8 x i32> poison, <8 x i32> zeroinitializer
  %.29 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.28
  %.30 = trunc i64 %.25 to i32
  %.31 = insertelement <8 x i32> poison, i32 %.30, i64 0
  %.32 = shufflevector <8 x i32> %.31, <8 x i32> poison, <8 x i32> zeroinitializer
  %.33 = icmp slt <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.32
  %.34 = and <8 x i1> %.16, %.29
  %.35 = and <8 x i1> %.20, %.33
  %.36 = xor <8 x i1> %.34, splat (i1 true)
  %.37 = xor <8 x i1> %.35, splat (i1 true)
  %.38 = mul nsw i64 %i.8, 16
  %.39 = getelementptr float, ptr %A, i64 %.38
  %.40 = getelementptr float, ptr %.39, i64 -1
  %.41 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.40, <8 x i1> %.34, <8 x float> zeroinitializer)
  %.42 = getelementptr float, ptr %.39, i64 7
  %.43 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.42, <8 x i1> %.35, <8 x float> zeroinitializer)
  %.44 = getelementptr float, ptr %.39, i64 1
  %.45 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.44, <8 x i1> %.34, <8 x float> zeroinitializer)
  %.46 = getelementptr float, ptr %.39, i64 9
  %.47 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.46, <8 x i1> %.35, <8 x float> zeroinitializer)
  %.48 = fadd contract <8 x float> %.41, %.45
  %.49 = fadd contract <8 x float> %.43, %.47
  %.50 = select <8 x i1> %.34, <8 x float> %.48, <8 x float> zeroinitializer
  %.51 = select <8 x i1> %.35, <8 x float> %.49, <8 x float> zeroinitializer
  %.52 = getelementptr float, ptr %C, i64 %.38
  store <8 x float> %.50, ptr %.52, align 4
  %.53 = getelementptr float, ptr %.52, i64 8
  store <8 x float> %.51, ptr %.53, align 4
  %i_next.54 = add nuw nsw i64 %i.8, 1
  %.55 = icmp slt i64 %i_next.54, %.4
  br i1 %.55, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.37, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, -16
  %.10 = add nsw i64 %.9, 1
  %.11 = call i64 @llvm.smax.i64(i64 %.10, i64 0)
  %.12 = call i64 @llvm.smin.i64(i64 %.11, i64 16)
  %.13 = trunc i64 %.12 to i32
  %.14 = insertelement <16 x i32> poison, i32 %.13, i64 0
  %.15 = shufflevector <16 x i32> %.14, <16 x i32> poison, <16 x i32> zeroinitializer
  %.16 = icmp sge <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.15
  %.17 = mul nsw i64 %i.8, -16
  %.18 = add nsw i64 %n, %.17
  %.19 = add nsw i64 %.18, -1
  %.20 = call i64 @llvm.smax.i64(i64 %.19, i64 0)
  %.21 = call i64 @llvm.smin.i64(i64 %.20, i64 16)
  %.22 = trunc i64 %.21 to i32
  %.23 = insertelement <16 x i32> poison, i32 %.22, i64 0
  %.24 = shufflevector <16 x i32> %.23, <16 x i32> poison, <16 x i32> zeroinitializer
  %.25 = icmp slt <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.24
  %.26 = and <16 x i1> %.16, %.25
  %.27 = xor <16 x i1> %.26, splat (i1 true)
  %.28 = mul nsw i64 %i.8, 16
  %.29 = getelementptr float, ptr %A, i64 %.28
  %.30 = getelementptr float, ptr %.29, i64 -1
  %.31 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.30, <16 x i1> %.26, <16 x float> zeroinitializer)
  %.32 = getelementptr float, ptr %.29, i64 1
  %.33 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.32, <16 x i1> %.26, <16 x float> zeroinitializer)
  %.34 = fadd contract <16 x float> %.31, %.33
  %.35 = select <16 x i1> %.26, <16 x float> %.34, <16 x float> zeroinitializer
  %.36 = getelementptr float, ptr %C, i64 %.28
  store <16 x float> %.35, ptr %.36, align 4
  %i_next.37 = add nuw nsw i64 %i.8, 1
  %.38 = icmp slt i64 %i_next.37, %.4
  br i1 %.38, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
